// Talks to the sidecar. The token lives in this tab's session storage and travels as a bearer token,
// never as a cookie: another site cannot make the browser send it.

const KEY = "specgov.token";
const TIMEOUT_MS = 5000;

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, { method = "GET", body } = {}) {
  const headers = { Accept: "application/json" };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS),
  });
  const content = await answer.json().catch(() => null);
  if (!answer.ok) throw new ApiError(answer.status, explain(answer.status, content));
  return content;
}

function explain(status, content) {
  if (status === 401 || status === 403) return "The token is missing or wrong.";
  const error = content?.error ?? content?.detail;
  if (typeof error === "string") return error;
  if (Array.isArray(error)) return error.map((fault) => `${(fault.loc ?? []).slice(1).join(".")}: ${fault.msg}`).join("; ");
  if (error?.message) return error.field ? `${error.field}: ${error.message}` : error.message;
  return `The sidecar answered ${status}.`;
}
