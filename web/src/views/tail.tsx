// Messages as they arrive, with their verdict.

import { useEffect, useState } from "preact/hooks";
import { address, type Share, type TailMessage, whyRefused } from "../api";
import { byteRange, number, precise, unitOf, utc } from "../format";
import { change } from "../route";

/** Time between a refusal and the next attempt. */
const RETRY_MS = 3000;

/** Messages that the page keeps. */
const MESSAGES_MAX = 500;

interface Entry extends TailMessage {
  key: number;
}

interface State {
  entries: Entry[];
  share: Share | undefined;
  error: string | undefined;
  open: boolean;
}

/** The newest first, at most `max`. */
export function prepend<T>(kept: T[], more: T[], max: number): T[] {
  return [...more.reverse(), ...kept].slice(0, max);
}

/** The messages that the agent sends for `url`, until the user pauses. */
function useTail(url: string, paused: boolean): State {
  const [state, setState] = useState<State>({
    entries: [],
    share: undefined,
    error: undefined,
    open: false,
  });
  useEffect(() => {
    setState((old) => ({ ...old, entries: [], share: undefined, error: undefined }));
  }, [url]);
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    if (paused) return;
    const abort = new AbortController();
    let retry: ReturnType<typeof setTimeout> | undefined;
    let key = Date.now() * 1000;
    let waiting: Entry[] = [];
    const stream = new EventSource(url);
    const show = () => {
      // The messages of an earlier filter may wait for this frame.
      if (abort.signal.aborted) return;
      const more = waiting;
      waiting = [];
      setState((old) => ({ ...old, entries: prepend(old.entries, more, MESSAGES_MAX) }));
    };
    stream.onopen = () => setState((old) => ({ ...old, open: true, error: undefined }));
    stream.onerror = () => {
      setState((old) => ({ ...old, open: false }));
      // An EventSource has no reason; the response does.
      if (stream.readyState === EventSource.CLOSED) {
        whyRefused(url, abort).then((error) => setState((old) => ({ ...old, error })));
        retry = setTimeout(() => setAttempt((number) => number + 1), RETRY_MS);
      }
    };
    stream.addEventListener("message", (event) => {
      const message = JSON.parse((event as MessageEvent).data) as TailMessage;
      key += 1;
      waiting.push({ ...message, key });
      // A hidden tab has no frames, and its user comes back to see what has arrived.
      if (waiting.length > MESSAGES_MAX) waiting.shift();
      if (waiting.length === 1) requestAnimationFrame(show);
    });
    stream.addEventListener("share", (event) => {
      const share = JSON.parse((event as MessageEvent).data) as Share;
      setState((old) => ({ ...old, share, open: true }));
    });
    return () => {
      stream.close();
      abort.abort();
      clearTimeout(retry);
      setState((old) => ({ ...old, open: false }));
    };
  }, [url, paused, attempt]);
  return state;
}

export function Tail({ params }: { params: URLSearchParams }) {
  const match = params.get("match") ?? "";
  const tags = params.getAll("where");
  const rejected = params.get("verdict") === "rejected";
  const paused = params.get("paused") === "1";
  const url = address("tail", { match, where: tags, verdict: rejected ? "rejected" : undefined });
  const { entries, share, error, open } = useTail(url, paused);
  return (
    <>
      <div class="bar">
        <label class="grow">
          Name{" "}
          <input
            type="search"
            placeholder="part of a name, or page.*"
            value={match}
            onChange={(event) => change({ match: (event.target as HTMLInputElement).value })}
          />
        </label>
        <label>
          Tags{" "}
          <input
            placeholder="env:prod user:ann"
            value={tags.join(" ")}
            onChange={(event) =>
              change({ where: (event.target as HTMLInputElement).value.split(/\s+/).filter(Boolean) })
            }
          />
        </label>
        <label>
          <input
            type="checkbox"
            checked={rejected}
            onChange={() => change({ verdict: rejected ? undefined : "rejected" })}
          />{" "}
          only rejected
        </label>
        <button
          type="button"
          aria-pressed={paused}
          onClick={() => change({ paused: paused ? undefined : "1" })}
        >
          {paused ? "resume" : "pause"}
        </button>
      </div>
      {error && <p class="alarm">{error}</p>}
      <p class="quiet" role="status">
        {paused ? "Paused." : open ? describeShare(share) : "Waiting for the agent."}
      </p>
      <ol class="tail" aria-label="messages, newest first">
        {entries.map((entry) => (
          <Line key={entry.key} message={entry} />
        ))}
      </ol>
    </>
  );
}

/** The sentence about the messages of the last second, and the share of them that is shown. */
export function describeShare(share: Share | undefined): string {
  if (!share) return "Messages appear as they arrive.";
  const arrived = `${number(share.messages)} ${unitOf(share.messages, "messages")} arrived in the last second`;
  if (share.share >= 1) return `${arrived}; all that match are shown.`;
  return `${arrived}; ${number(share.share * 100)} % of those that match are shown, chosen at random.`;
}

function Line({ message }: { message: TailMessage }) {
  const { bad } = message;
  const from = [
    message.listener,
    message.address,
    message.pid && `pid ${message.pid}`,
    message.container && `container ${message.container.slice(0, 12)}`,
  ];
  return (
    <li class={message.verdict}>
      <span class="quiet">
        <time title={utc(message.time)}>{precise(message.time)}</time> {from.filter(Boolean).join(" · ")}
      </span>
      <code>
        {bad ? (
          <>
            {bad.before}
            <mark>{bad.bytes}</mark>
            {bad.after}
          </>
        ) : (
          message.line
        )}
      </code>
      {message.verdict !== "accepted" && (
        <span class={message.verdict === "rejected" ? "bad" : "quiet"}>
          {message.verdict === "rejected" ? "✗" : "–"} {message.verdict}: {message.reason}
          {bad && `, ${byteRange(bad.offset, bad.length)} of ${message.bytes}`}
        </span>
      )}
    </li>
  );
}
