import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface Props {
  title: string;
  action: string;
  children: ComponentChildren;
  onConfirm: () => void;
  onLeave: () => void;
}

/** Asks before something is done, and says what it does. Escape and the first button leave it undone. */
export function Confirm({ title, action, children, onConfirm, onLeave }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);

  function confirm() {
    dialog.current?.close();
    onConfirm();
  }

  return (
    <dialog ref={dialog} class="confirm card" aria-labelledby="confirm-title" onClose={onLeave}>
      <h2 id="confirm-title">{title}</h2>
      {children}
      <div class="buttons">
        <button type="button" onClick={() => dialog.current?.close()}>
          Cancel
        </button>
        <button type="button" class="primary" onClick={confirm}>
          {action}
        </button>
      </div>
    </dialog>
  );
}
