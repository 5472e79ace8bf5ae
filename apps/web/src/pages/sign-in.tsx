import { useEffect, useRef, useState } from "preact/hooks";
import { call, Problem, signIn, signOut } from "../api";
import { sentenceOf } from "../resource";
import { Failure } from "../ui/failure";

/** Other characters can not be sent in a header. */
const SENDABLE = /^[\x21-\x7e]+$/;

interface Props {
  /** Why the key that was good before is none any more. */
  why: string | null;
  onSignedIn: () => Promise<void>;
}

/** Asks for an API key, which is tried before it is kept. It stays in the page's memory and is gone on reload. */
export function SignInPage({ why, onSignedIn }: Props) {
  const [given, setGiven] = useState("");
  const [problem, setProblem] = useState(why);
  const [trying, setTrying] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Sign in – Plimsoll";
    field.current?.focus();
  }, []);

  async function submit(event: Event) {
    event.preventDefault();
    const key = given.trim();
    if (!SENDABLE.test(key)) {
      setProblem("Unknown key. It has a character that no key has, perhaps an invisible one: copy it again.");
      return;
    }
    setTrying(true);
    setProblem(null);
    signIn(key);
    try {
      await call("sessions", { query: { limit: 1 } });
      await onSignedIn();
    } catch (error) {
      signOut();
      setProblem(error instanceof Problem && error.body.status === 401 ? "Unknown key." : sentenceOf(error));
    } finally {
      setTrying(false);
    }
  }

  return (
    <form class="sign-in card" onSubmit={(event) => void submit(event)}>
      <h1>Sign in</h1>
      <p>This service needs an API key. You see the data of the key's tenant.</p>
      <label for="key">API key</label>
      <input
        id="key"
        ref={field}
        type="password"
        autocomplete="off"
        spellcheck={false}
        placeholder="plk_…"
        value={given}
        required
        aria-describedby="key-note"
        onInput={(event) => setGiven(event.currentTarget.value)}
      />
      <p id="key-note" class="quiet small">
        Held in this page's memory only; a reload clears it. Create one with{" "}
        <code>plimsoll keys create --tenant TENANT --name NAME</code>.
      </p>
      <Failure why={problem} />
      <button type="submit" class="primary" disabled={trying || !given.trim()}>
        {trying ? "Trying…" : "Sign in"}
      </button>
    </form>
  );
}
