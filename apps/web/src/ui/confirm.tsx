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

  const left = useRef(false);

  /** At once, not in the `close` event, which comes later: it would end a dialog that was opened again meanwhile. */
  function leave() {
    if (left.current) return;
    left.current = true;
    dialog.current?.close();
    onLeave();
  }

  function confirm() {
    leave();
    onConfirm();
  }

  return (
    <dialog ref={dialog} class="confirm card" aria-labelledby="confirm-title" onCancel={leave} onClose={leave}>
      <h2 id="confirm-title">{title}</h2>
      {children}
      <div class="buttons">
        <button type="button" onClick={leave}>
          Cancel
        </button>
        <button type="button" class="primary" onClick={confirm}>
          {action}
        </button>
      </div>
    </dialog>
  );
}
