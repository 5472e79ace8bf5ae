import { useCallback, useEffect, useState } from "preact/hooks";
import { call, isSignedIn, Problem, signOut, whenRefused } from "./api";
import { LiveProvider } from "./live";
import { SessionPage } from "./pages/session";
import { SessionsPage } from "./pages/sessions";
import { SignInPage } from "./pages/sign-in";
import { sentenceOf } from "./resource";
import { addressOf, usePlace } from "./router";
import type { ModelList } from "./types";

type Door = { state: "asking" } | { state: "closed" } | { state: "broken"; why: string } | { state: "open" };

export function App() {
  const [door, setDoor] = useState<Door>({ state: "asking" });
  const [models, setModels] = useState<ModelList | null>(null);

  /** The catalogue needs a key exactly when everything else does. */
  const knock = useCallback(async () => {
    try {
      setModels(await call<ModelList>("models"));
      setDoor({ state: "open" });
    } catch (error) {
      const refused = error instanceof Problem && error.body.status === 401;
      setDoor(refused ? { state: "closed" } : { state: "broken", why: sentenceOf(error) });
    }
  }, []);

  const leave = useCallback(() => {
    signOut();
    setModels(null);
    setDoor({ state: "closed" });
  }, []);

  useEffect(() => {
    whenRefused(leave);
    void knock();
  }, [knock, leave]);

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
            <button type="button" class="plain" onClick={leave}>
              Sign out
            </button>
          )}
        </nav>
      </header>
      <main id="main" tabIndex={-1}>
        {door.state === "asking" && <p role="status">Connecting…</p>}
        {door.state === "broken" && (
          <div class="notice bad" role="alert">
            <p>{door.why}</p>
            <button type="button" onClick={() => void knock()}>
              Try again
            </button>
          </div>
        )}
        {door.state === "closed" && <SignInPage onSignedIn={knock} />}
        {door.state === "open" && models && (
          <LiveProvider>
            <Pages models={models} />
          </LiveProvider>
        )}
      </main>
    </>
  );
}

function Pages({ models }: { models: ModelList }) {
  const place = usePlace();
  const named = place.page === "session" ? place.sessionId : "";
  // A new page is announced, and the keyboard goes on from its top.
  useEffect(() => {
    if (named) document.querySelector<HTMLElement>("#main h1")?.focus();
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
