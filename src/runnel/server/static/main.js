import { start } from "./app.js";
import { connect } from "./server.js";

const RETRY_MS = 500;

// Connect, also to a server that is still loading its model.
async function connected() {
  const status = window.document.getElementById("status");
  for (;;) {
    try {
      const source = await connect();
      status.textContent = "";
      return source;
    } catch (error) {
      status.textContent = error.message;
      if (!error.loading) throw error;
      await new Promise((done) => setTimeout(done, RETRY_MS));
    }
  }
}

start(await connected());
