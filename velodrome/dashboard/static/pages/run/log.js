/** What a run said: the end of its log, older parts on demand, followed while it trains. */

import { get } from "../../core/api.js";
import { h } from "../../core/element.js";
import { bytes } from "../../core/format.js";
import * as live from "../../core/live.js";
import { card, empty } from "../../parts/basics.js";
import { complain } from "../../parts/notices.js";

export function logOf(path, run, signal) {
  if (run.has_log === false) return empty("No log", "This run has written nothing yet.");
  const text = h("pre.log", { tabindex: "0", role: "region", "aria-label": "Log" });
  const size = h("span.muted.small");
  const none = h("p.muted", { hidden: true }, "Nothing was written yet.");
  let [from, to] = [0, 0];
  const older = h(
    "button",
    { type: "button", hidden: true, on: { click: () => ask({ before: from }).catch(complain) } },
    "Older",
  );

  async function ask(asked) {
    const found = await get(path, asked, signal);
    const wasAtEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 30;
    if (asked.before !== undefined) {
      text.prepend(found.text);
      from = found.from;
    } else {
      if (asked.after === undefined) [text.textContent, from] = ["", found.from];
      text.append(found.text);
      to = found.to;
      if (wasAtEnd) text.scrollTop = text.scrollHeight;
    }
    older.hidden = from <= 0;
    size.textContent = bytes(found.size);
    none.hidden = found.size > 0;
    text.hidden = !none.hidden;
  }

  const begin = ask({}).catch((error) => !signal.aborted && complain(error));
  live.on(
    "runs",
    async ({ runs }) => {
      if (!runs.some((line) => line.id === run.id) || !text.isConnected) return;
      await begin;
      ask({ after: to }).catch(() => {});
    },
    signal,
  );
  return card("Log", { actions: [size, older] }, none, text);
}
