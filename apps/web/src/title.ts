// What a session is called: the title it was given, else the beginning of its first real exchange, else its goal.
import { cut } from "./format";
import type { Session } from "./types";

const MOST_CHARACTERS = 90;

/** A title is given in `metadata.title`, where every client can read and set it. */
export function givenTitle(session: Session): string | null {
  const { title } = session.metadata;
  return typeof title === "string" && title.trim() ? title.trim() : null;
}

export function titleOf(session: Session): string {
  const first = session.figures?.first_input?.trim().split("\n", 1)[0];
  return cut(givenTitle(session) ?? (first || session.room_goal || "New session"), MOST_CHARACTERS);
}
