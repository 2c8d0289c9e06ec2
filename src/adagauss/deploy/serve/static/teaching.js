// The teach button and its progress bar.
import { follow, request, upload } from "./api.js";
import { clean, isLoading, markTaught, waiting } from "./classes.js";
import { attempt, say } from "./dialogs.js";

const TOGETHER = 400; // pictures per request; the server accepts 500
const SENDING = 0.3; // share of the progress bar for the upload

const part = (name) => document.getElementById(name);
let busy = false;
let job = null;
let changed = () => {};

export function setup(onChange) {
  changed = onChange;
  part("teach").addEventListener("click", teach);
  part("teach-stop").addEventListener("click", () => {
    if (job) attempt(() => request(`/api/jobs/${job.id}`, { method: "DELETE" }));
  });
}

// Shows the pictures to teach, or the running job of another client.
export function show(model) {
  if (busy) return;
  const drafts = waiting();
  const nameless = drafts.find((draft) => !draft.name.trim());
  const count = drafts.reduce((sum, draft) => sum + draft.waiting.length, 0);
  part("teach").disabled = !drafts.length || Boolean(nameless) || isLoading();
  part("teach").textContent = count ? `Teach ${count} ${count === 1 ? "picture" : "pictures"}` : "Teach";
  part("teach-progress").hidden = !model.job;
  if (model.job) bar(model.job.progress, `${model.job.action}: ${model.job.summary}`);
  else if (isLoading()) part("teach-text").textContent = "Loading pictures …";
  else if (nameless) part("teach-text").textContent = "Enter a name for the new class.";
  else if (drafts.length) part("teach-text").textContent = drafts.map((draft) => draft.name.trim()).join(", ");
  else if (model.classes.length) part("teach-text").textContent = "Add pictures to a class, then teach.";
  else part("teach-text").textContent = "Start with two classes and about ten pictures of each.";
}

async function teach() {
  busy = true;
  part("teach").disabled = true;
  part("teach-progress").hidden = false;
  await attempt(async () => {
    const skipped = [];
    const notes = [];
    for (const draft of waiting()) draft.name = clean(draft.name);
    for (const group of groups(waiting())) {
      job = await upload("/api/teach", formOf(group), (share) => bar(SENDING * share, "Uploading pictures …"));
      job = await follow(job, (now) => bar(SENDING + (1 - SENDING) * now.progress, words(now)));
      if (job.state === "cancelled") return say("Cancelled. The model is unchanged.");
      skipped.push(...job.skipped);
      notes.push(...job.notes);
      markTaught(group, job.skipped);
    }
    if (skipped.length) notes.push(`${skipped.length} could not be read: ${skipped[0].name} (${skipped[0].reason})`);
    if (notes.length) say(notes.join(" · "));
  });
  busy = false;
  job = null;
  changed("model");
}

function words(now) {
  if (now.state === "waiting") return "Waiting for another job …";
  return now.progress > 0.79 ? "Saving …" : "Learning …";
}

function bar(share, text) {
  part("teach-bar").value = share;
  part("teach-text").textContent = text;
}

// Splits pictures into requests: a list of [{draft, items}].
function groups(drafts) {
  const all = [[]];
  let room = TOGETHER;
  for (const draft of drafts) {
    for (let start = 0; start < draft.waiting.length; ) {
      if (!room) {
        all.push([]);
        room = TOGETHER;
      }
      const items = draft.waiting.slice(start, start + room);
      all.at(-1).push({ draft, items });
      start += items.length;
      room -= items.length;
    }
  }
  return all;
}

function formOf(group) {
  const form = new FormData();
  for (const { draft, items } of group) {
    form.append("label", draft.name);
    for (const item of items) form.append("pictures", item.file);
  }
  return form;
}
