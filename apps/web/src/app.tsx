import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { call, isSignedIn, Problem, signOut, whenRefused } from "./api";
import { LiveProvider } from "./live";
import { SessionPage } from "./pages/session";
import { SessionsPage } from "./pages/sessions";
import { SignInPage } from "./pages/sign-in";
import { sentenceOf } from "./resource";
import { addressOf, usePlace } from "./router";
import type { ModelList } from "./types";
import { Failure } from "./ui/failure";

type Access =
  | { state: "connecting" }
  | { state: "sign-in"; why: string | null }
  | { state: "failed"; why: string }
  | { state: "granted" };

export function App() {
  const [access, setAccess] = useState<Access>({ state: "connecting" });
  const [models, setModels] = useState<ModelList | null>(null);

  /** The catalogue needs a key exactly when everything else does. */
  const connect = useCallback(async () => {
    try {
      setModels(await call<ModelList>("models"));
      setAccess({ state: "granted" });
    } catch (error) {
      const isRefused = error instanceof Problem && error.body.status === 401; // which led to the sign-in already
      if (!isRefused) setAccess({ state: "failed", why: sentenceOf(error) });
    }
  }, []);

  const leave = useCallback((why: string | null) => {
    signOut();
    setModels(null);
    setAccess((before) => (before.state === "sign-in" ? before : { state: "sign-in", why }));
  }, []);

  useEffect(() => {
    whenRefused(() => leave(isSignedIn() ? "The key is not accepted any more." : null));
    void connect();
  }, [connect, leave]);

  return (
    <>
      <button type="button" class="skip" onClick={skipToMain}>
        Skip to content
      </button>
      <header class="top">
        <a class="brand" href={addressOf()}>
          <img src="./mark.svg" alt="" width="22" height="22" />
          Plimsoll <span class="quiet">inspector</span>
        </a>
        <nav aria-label="Main">
          <a href={addressOf()}>Sessions</a>
          <a href="../docs">API</a>
          {isSignedIn() && (
            <button type="button" class="plain" onClick={() => leave(null)}>
              Sign out
            </button>
          )}
        </nav>
      </header>
      <main id="main" tabIndex={-1}>
        {access.state === "failed" && <Failure why={access.why} onRetry={() => void connect()} />}
        {access.state === "sign-in" && <SignInPage why={access.why} onSignedIn={connect} />}
        {(access.state === "connecting" || access.state === "granted") && (
          <LiveProvider>
            {access.state === "granted" && models ? <Pages models={models} /> : <p role="status">Connecting…</p>}
          </LiveProvider>
        )}
      </main>
    </>
  );
}

function Pages({ models }: { models: ModelList }) {
  const place = usePlace();
  const named = place.page === "session" ? place.sessionId : "";
  const before = useRef(named);
  // A new page is announced, and the keyboard goes on from its top.
  useEffect(() => {
    if (named || before.current) document.querySelector<HTMLElement>("#main h1")?.focus();
    before.current = named;
  }, [named]);
  return place.page === "sessions" ? (
    <SessionsPage models={models} />
  ) : (
    <SessionPage key={place.sessionId} place={place} models={models} />
  );
}

function skipToMain(): void {
  document.getElementById("main")?.focus();
}
