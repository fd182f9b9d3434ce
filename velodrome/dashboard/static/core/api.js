/** Questions to the server. Every address is relative to the page's base, so that a proxy's prefix is kept. */

/** An answer that says no, with the server's own sentence and what is wrong with single settings. */
export class ApiError extends Error {
  /** @param {string} message @param {number} status @param {{key: string, message: string}[]} problems */
  constructor(message, status, problems = []) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.problems = problems;
  }
}

/** The whole address of a path such as "api/runs", with what is asked; empty values are left out. */
export function address(path, asked = {}) {
  const url = new URL(path, document.baseURI);
  for (const [key, value] of Object.entries(asked)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(key, String(value));
  }
  return url;
}

async function answered(response) {
  const kind = response.headers.get("Content-Type") ?? "";
  if (response.status === 401) {
    // The cookie is gone or the token changed: the server answers the same address with its log-in page.
    location.reload();
    throw new ApiError("You are logged out. Open the link that `velodrome serve` printed.", 401);
  }
  const body = kind.includes("json") ? await response.json() : null;
  if (response.ok) return body;
  const message = body?.error?.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  throw new ApiError(message, response.status, body?.problems ?? body?.error?.problems ?? []);
}

async function ask(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      "The server does not answer. Is `velodrome serve` still running? This page tries again by itself.",
      0,
    );
  }
  return answered(response);
}

/** Ask for something. */
export function get(path, asked = {}, signal = undefined) {
  return ask(address(path, asked), { signal });
}

/** Have something done. */
export function post(path, body = {}, signal = undefined) {
  return ask(address(path), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

/** Whether an error only says that the reader went elsewhere. */
export const isLeaving = (error) => error?.name === "AbortError";

/** One part of an address: ids and names may hold anything. */
export const part = (name) => encodeURIComponent(name);
