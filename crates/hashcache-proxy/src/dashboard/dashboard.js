"use strict";
// Replaces the parts of the page that have changed. The HTML is that of the page itself, made and
// escaped by the proxy.
(() => {
  const state = document.getElementById("state");
  const shown = new Map();
  let late;

  const say = (text, isLost) => {
    state.textContent = text;
    state.className = isLost ? "lost" : "";
  };

  const open = () => {
    const stream = new EventSource("/-/events");
    stream.onmessage = (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) {
        const part = document.getElementById(id);
        if (part && shown.get(id) !== html) {
          part.innerHTML = html;
          shown.set(id, html);
        }
      }
      say("live", false);
      // A stream ends once a minute and is opened again at once, so an error alone says little.
      clearTimeout(late);
      late = setTimeout(() => say("no connection to the proxy", true), 8000);
    };
    stream.onerror = () => {
      // A refusal closes the stream for good.
      if (stream.readyState === EventSource.CLOSED) {
        setTimeout(open, 5000);
      }
    };
  };

  open();
})();
