// Requests to the server. The token, if any, is stored for this tab only and sent in a header.
import { ask } from "./dialogs.js";

const KEY = "adagauss-token";

// A link may carry the token after "#": browsers do not send that part. It is removed immediately.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname);
}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

let asking = null;

function askForToken() {
  asking ??= ask({ title: "Token required", input: "", secret: true, yes: "Enter" }).then((answer) => {
    asking = null;
    if (answer?.input) sessionStorage.setItem(KEY, answer.input.trim());
    return Boolean(answer?.input);
  });
  return asking;
}

export async function request(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (answer.status === 401 && (await askForToken())) return request(path, options);
  if (!answer.ok) throw new Error(await reason(answer));
  return answer;
}

async function reason(answer) {
  try {
    return (await answer.json()).detail;
  } catch {
    return `HTTP status ${answer.status}`;
  }
}

export async function get(path) {
  return (await request(path)).json();
}

export async function post(path, body) {
  const options = { method: "POST" };
  if (body instanceof FormData) options.body = body;
  else if (body) Object.assign(options, { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
  return (await request(path, options)).json();
}

// Sends a form and reports upload progress, which fetch does not support.
export function upload(path, form, onProgress) {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("POST", path);
    sending.responseType = "json";
    for (const [name, value] of Object.entries(headers())) sending.setRequestHeader(name, value);
    sending.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    sending.onerror = () => reject(new Error("cannot connect to the server"));
    sending.onload = () => {
      if (sending.status < 300) resolve(sending.response);
      else reject(new Error(sending.response?.detail ?? `HTTP status ${sending.status}`));
    };
    sending.send(form);
  });
}

// Polls a job until it has finished.
export async function follow(job, onProgress = () => {}) {
  while (job.state === "waiting" || job.state === "running") {
    onProgress(job);
    await new Promise((resolve) => setTimeout(resolve, 250));
    job = await get(`/api/jobs/${job.id}`);
  }
  onProgress(job);
  if (job.state === "failed") throw new Error(job.error);
  return job;
}

export async function download(path, name) {
  const content = await (await request(path)).blob();
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
