// Messages as they arrive, with their verdict.

import { useEffect, useState } from "preact/hooks";
import { address, type Seen, type Share, whyRefused } from "../api";
import { number, precise, utc } from "../format";
import { change } from "../route";

/** After a refusal, so long until the next attempt. */
const AGAIN_MS = 3000;

/** Messages that the page keeps. */
const KEPT = 500;

interface Entry extends Seen {
  key: number;
}

interface State {
  entries: Entry[];
  share: Share | undefined;
  error: string | undefined;
  open: boolean;
}

/** The newest first, and no more than are kept. */
export function prepend<T>(kept: T[], more: T[], most: number): T[] {
  return [...more.reverse(), ...kept].slice(0, most);
}

/** What arrives, while `asked` says what and nobody has paused. */
function useTail(asked: string, paused: boolean): State {
  const [state, setState] = useState<State>({
    entries: [],
    share: undefined,
    error: undefined,
    open: false,
  });
  useEffect(() => {
    setState((old) => ({ ...old, entries: [], share: undefined, error: undefined }));
  }, [asked]);
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
    if (paused) return;
    const abort = new AbortController();
    let again: ReturnType<typeof setTimeout> | undefined;
    let key = Date.now() * 1000;
    let waiting: Entry[] = [];
    const stream = new EventSource(asked);
    const show = () => {
      const more = waiting;
      waiting = [];
      setState((old) => ({ ...old, entries: prepend(old.entries, more, KEPT) }));
    };
    stream.onopen = () => setState((old) => ({ ...old, open: true, error: undefined }));
    stream.onerror = () => {
      setState((old) => ({ ...old, open: false }));
      // An EventSource does not say why; the answer itself does.
      if (stream.readyState === EventSource.CLOSED) {
        whyRefused(asked, abort).then((error) => setState((old) => ({ ...old, error })));
        again = setTimeout(() => setAttempt((number) => number + 1), AGAIN_MS);
      }
    };
    stream.addEventListener("message", (event) => {
      // Our events are named so, and so are those of a stream without names.
      const seen = JSON.parse((event as MessageEvent).data) as Seen;
      key += 1;
      waiting.push({ ...seen, key });
      if (waiting.length === 1) requestAnimationFrame(show);
    });
    stream.addEventListener("share", (event) => {
      const share = JSON.parse((event as MessageEvent).data) as Share;
      setState((old) => ({ ...old, share, open: true }));
    });
    return () => {
      stream.close();
      abort.abort();
      clearTimeout(again);
      setState((old) => ({ ...old, open: false }));
    };
  }, [asked, paused, attempt]);
  return state;
}

export function Tail({ params }: { params: URLSearchParams }) {
  const match = params.get("match") ?? "";
  const tags = params.getAll("where");
  const rejected = params.get("verdict") === "rejected";
  const paused = params.get("paused") === "1";
  const asked = address("tail", { match, where: tags, verdict: rejected ? "rejected" : undefined });
  const { entries, share, error, open } = useTail(asked, paused);
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
        {paused ? "Paused." : open ? told(share) : "Waiting for the agent."}
      </p>
      <ol class="tail" aria-label="messages, newest first">
        {entries.map((entry) => (
          <Line key={entry.key} seen={entry} />
        ))}
      </ol>
    </>
  );
}

/** How much of what came is shown. */
export function told(share: Share | undefined): string {
  if (!share) return "Messages appear as they arrive.";
  const came = `${number(share.messages)} messages came in the last second`;
  if (share.share >= 1) return `${came}; every one that fits is shown.`;
  return `${came}; of those that fit, ${number(share.share * 100)} % are shown, chosen at random.`;
}

function Line({ seen }: { seen: Seen }) {
  const { bad } = seen;
  const from = [
    seen.listener,
    seen.address,
    seen.pid && `pid ${seen.pid}`,
    seen.container && `container ${seen.container.slice(0, 12)}`,
  ];
  return (
    <li class={seen.verdict}>
      <span class="quiet">
        <time title={utc(seen.time)}>{precise(seen.time)}</time> {from.filter(Boolean).join(" · ")}
      </span>
      <code>
        {bad ? (
          <>
            {bad.before}
            <mark>{bad.bytes}</mark>
            {bad.after}
          </>
        ) : (
          seen.line
        )}
      </code>
      {seen.verdict !== "accepted" && (
        <span class={seen.verdict === "rejected" ? "bad" : "quiet"}>
          {seen.verdict === "rejected" ? "✗" : "–"} {seen.verdict}: {seen.reason}
          {bad && `, ${place(bad.offset, bad.length)} of ${seen.bytes}`}
        </span>
      )}
    </li>
  );
}

function place(offset: number, length: number): string {
  return length === 1 ? `byte ${offset}` : `bytes ${offset} to ${offset + length - 1}`;
}
