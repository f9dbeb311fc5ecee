import { start } from "./app.js";
import { connect } from "./server.js";

try {
  start(await connect());
} catch (error) {
  window.document.getElementById("status").textContent = error.message;
}
