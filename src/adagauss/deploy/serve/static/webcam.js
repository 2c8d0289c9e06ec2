// The webcam: live predictions, and frames that are kept as pictures.
import { answer, element } from "./answers.js";
import { post } from "./api.js";
import { attempt } from "./dialogs.js";
import { paint, toFile } from "./files.js";
import * as preview from "./preview.js";

const LONGEST = 640; // pixels of the longer side of a frame
const PAUSE = 300; // milliseconds between two predictions
const AFTER_ERROR = 4000;
const REFUSALS = {
  NotAllowedError: "The webcam was refused: allow it for this page in the settings of the browser.",
  NotFoundError: "There is not any webcam on this device.",
  NotReadableError: "The webcam is used by another program: close that program and try again.",
};
const INSECURE = "Browsers allow the webcam only on http://127.0.0.1, http://localhost, or over HTTPS.";

const part = (name) => document.getElementById(name);
let stream = null;
let taught = false;

export function setup() {
  part("webcam").addEventListener("click", () => (stream ? stop() : start()));
  part("webcam-keep").addEventListener("click", () => attempt(async () => preview.add([await frame()])));
}

export function show(model) {
  taught = model.classes.length > 0;
}

// The current frame as a file, for the preview or for a class.
export async function frame() {
  const video = part("webcam-video");
  const canvas = document.createElement("canvas");
  paint(canvas, video, [video.videoWidth, video.videoHeight], LONGEST);
  return toFile(canvas, "webcam.jpg");
}

async function start() {
  part("webcam").disabled = true;
  part("webcam-text").textContent = "";
  try {
    if (!navigator.mediaDevices) throw new Error(INSECURE);
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    stream.getVideoTracks()[0].addEventListener("ended", stop);
    part("webcam-video").srcObject = stream;
    await part("webcam-video").play();
  } catch (error) {
    stop();
    part("webcam-text").textContent = REFUSALS[error.name] ?? error.message;
  }
  part("webcam").disabled = false;
  if (stream) predict(stream);
  render();
}

function stop() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  part("webcam-answer").replaceChildren();
  render();
}

function render() {
  document.body.classList.toggle("webcam", stream !== null); // shows the buttons of the cards
  part("webcam").textContent = stream ? "Stop the webcam" : "Use the webcam";
  part("webcam-live").hidden = !stream;
}

async function predict(from) {
  while (stream === from) {
    let pause = PAUSE;
    try {
      if (taught && document.visibilityState === "visible") await predictFrame(from);
      else if (!taught) part("webcam-answer").textContent = "Name two classes, then add pictures with “Webcam” on each card.";
    } catch (error) {
      part("webcam-answer").replaceChildren(element("p", "quiet", error.message));
      pause = AFTER_ERROR;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function predictFrame(from) {
  const form = new FormData();
  form.append("pictures", await frame());
  const { predictions } = await post(`/api/predict?${preview.query(3)}`, form);
  if (stream === from) part("webcam-answer").replaceChildren(answer(predictions[0]));
}
