// Messages as they arrive: a sample of them, with what became of each.

import { useEffect, useRef, useState } from "preact/hooks";
import { address } from "../api";
import { exact } from "../format";
import { change, write } from "../route";

/** Kept on the page; older ones go. */
const KEPT = 500;

interface TailEvent {
  at: number;
  listener: string;
  sender: string | null;
  message: string;
  rejected: string | null;
  /** Where in the message the error is, in characters. */
  position: number | null;
}

interface Shown extends TailEvent {
  id: number;
}

export function Tail({ params }: { params: URLSearchParams }) {
  const match = params.get("match") ?? "";
  const [text, setText] = useState(match);
  const [rows, setRows] = useState<Shown[]>([]);
  const [note, setNote] = useState("waiting for messages");
  const [paused, setPaused] = useState(false);
  const count = useRef(0);
  useEffect(() => {
    if (paused) return;
    const stream = new EventSource(address("tail", { match }));
    stream.addEventListener("messages", (event) => {
      const { messages, seen, shown } = JSON.parse((event as MessageEvent).data);
      const more = (messages as TailEvent[]).map((message) => {
        count.current += 1;
        return { ...message, id: count.current };
      });
      setRows((old) => [...more.reverse(), ...old].slice(0, KEPT));
      setNote(
        seen > shown ? `${exact(shown)} of ${exact(seen)} messages of the last second` : "every message",
      );
    });
    stream.addEventListener("refused", (event) =>
      setNote(JSON.parse((event as MessageEvent).data).error.message),
    );
    stream.onerror = () => setNote("the stream is interrupted; it goes on when the agent answers");
    return () => stream.close();
  }, [match, paused]);
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          change({ match: text });
        }}
      >
        <label>
          Filter{" "}
          <input
            type="search"
            value={text}
            placeholder="part of a name"
            onInput={(event) => setText((event.target as HTMLInputElement).value)}
          />
        </label>
        <button type="button" aria-pressed={paused} onClick={() => setPaused(!paused)}>
          {paused ? "go on" : "pause"}
        </button>
        <span class="quiet" role="status">
          {note}
        </span>
      </form>
      <ol class="tail">
        {rows.map((row) => (
          <li key={row.id} class={row.rejected ? "bad" : undefined}>
            <time>{new Date(row.at * 1000).toLocaleTimeString([], { hour12: false })}</time>{" "}
            <a href={write("explain", { line: row.message })}>
              <Marked text={row.message} position={row.position} />
            </a>{" "}
            <span class="quiet">
              {row.rejected ? `rejected: ${row.rejected}; ` : ""}
              {row.listener}
              {row.sender ? ` from ${row.sender}` : ""}
            </span>
          </li>
        ))}
      </ol>
    </>
  );
}

function Marked({ text, position }: { text: string; position: number | null }) {
  if (position === null || position >= text.length) return <code>{text}</code>;
  return (
    <code>
      {text.slice(0, position)}
      <mark>{text.slice(position)}</mark>
    </code>
  );
}
