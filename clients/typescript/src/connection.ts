/** What a client is given, checked: where the service is, the key, and how patient to be. */

/** Options of `Plimsoll`. */
export interface Options {
  /** Where the service is. Defaults to `PLIMSOLL_URL`, then `http://127.0.0.1:8000`. */
  url?: string | undefined;
  /** Defaults to `PLIMSOLL_API_KEY`. Not needed while the service has no keys. */
  apiKey?: string | undefined;
  /** How long a call may take, in seconds, retries and streams included. 300 by default. */
  deadlineS?: number | undefined;
  /** How often a call is sent again at most. 5 by default. */
  maxRetries?: number | undefined;
  /** What requests are made with, for proxies and certificates. Defaults to the platform's `fetch`. */
  fetch?: typeof fetch | undefined;
}

/** Checked options. */
export interface Connection {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly deadlineS: number;
  readonly maxRetries: number;
  readonly fetch: typeof fetch;
}

const LONGEST_DEADLINE_S = 2_000_000; // timers take no more milliseconds than 2 ** 31

/** Throws a `TypeError` or `RangeError`, which do not repeat the key or the address, for what can never work. */
export function connectionOf(options: Options): Connection {
  const environment = (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {};
  const url = addressOf(options.url || environment["PLIMSOLL_URL"] || "http://127.0.0.1:8000");
  const key = options.apiKey ?? environment["PLIMSOLL_API_KEY"] ?? "";
  if (!/^[!-~]*$/.test(key)) throw new TypeError("The API key has characters that no key has.");
  const { deadlineS = 300, maxRetries = 5 } = options;
  if (!(deadlineS > 0 && deadlineS <= LONGEST_DEADLINE_S && maxRetries >= 0))
    throw new RangeError(`deadlineS must be more than 0 and at most ${LONGEST_DEADLINE_S}, maxRetries 0 or more.`);
  const headers: Record<string, string> = key ? { Authorization: `Bearer ${key}` } : {};
  return { url, headers, deadlineS, maxRetries, fetch: options.fetch ?? globalThis.fetch };
}

function addressOf(url: string): string {
  if (!/^https?:\/\/[^/]/i.test(url) || !URL.canParse(url))
    throw new TypeError("The url must begin with http:// or https:// and name a host.");
  const { username, password, search, hash } = new URL(url);
  if (username || password || search || hash)
    throw new TypeError("The url has no place for a user, a query or a fragment; give the key as apiKey.");
  return url.replace(/\/+$/, "");
}
