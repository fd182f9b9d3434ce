/**
 * One event stream for all tabs of a browser: browsers allow six connections to a host, and people open twelve tabs.
 * Runs as a SharedWorker, or as a module of the page itself where there are none (`Stream` is the same for both).
 */

const NAMES = ["hello", "machine", "runs", "jobs", "studies", "tasks", "happened", "resync", "problem"];
const KEPT = ["hello", "machine"]; // what a tab that joins later is told at once
const FIRST_WAIT = 1000;
const LONGEST_WAIT = 10000;

export class Stream {
  /** @param {string} url of the events @param {(message: object) => void} tell everybody who listens */
  constructor(url, tell) {
    this.url = url;
    this.tell = tell;
    this.state = "waiting";
    this.wait = FIRST_WAIT;
    this.kept = {};
    this.open();
  }

  open() {
    this.source = new EventSource(this.url);
    this.source.onopen = () => {
      this.wait = FIRST_WAIT;
      this.change("live");
    };
    this.source.onerror = () => {
      this.change("waiting");
      // The browser itself tries again after a broken connection, but not after an answer such as 503 or 401.
      if (this.source.readyState === EventSource.CLOSED) {
        setTimeout(() => this.open(), this.wait);
        this.wait = Math.min(LONGEST_WAIT, this.wait * 2);
      }
    };
    for (const name of NAMES) this.source.addEventListener(name, (event) => this.heard(name, event));
  }

  heard(name, event) {
    let data;
    try {
      data = JSON.parse(event.data);
    } catch {
      return; // cut off in the middle: the server tells it again
    }
    const message = { kind: "event", name, data };
    if (KEPT.includes(name)) this.kept[name] = message;
    this.tell(message);
  }

  change(state) {
    if (state === this.state) return;
    this.state = state;
    this.tell({ kind: "state", state });
  }

  /** What somebody who begins to listen has to know. */
  greeting() {
    return [{ kind: "state", state: this.state }, ...Object.values(this.kept)];
  }
}

if (typeof SharedWorkerGlobalScope !== "undefined" && self instanceof SharedWorkerGlobalScope) {
  const ports = new Set();
  let stream = null;
  self.onconnect = (event) => {
    const port = event.ports[0];
    port.onmessage = ({ data }) => {
      if (data.kind === "join") {
        ports.add(port);
        stream ??= new Stream(data.url, (message) => {
          for (const each of ports) each.postMessage(message);
        });
        for (const message of stream.greeting()) port.postMessage(message);
      } else if (data.kind === "leave") {
        ports.delete(port);
      }
    };
  };
}
