import type { Place } from "../router";
import type { ModelList } from "../types";

export function SessionPage({ place }: { place: Extract<Place, { page: "session" }>; models: ModelList }) {
  return <h1 tabIndex={-1}>Session {place.sessionId}</h1>;
}
