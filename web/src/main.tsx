import { render } from "preact";
import { useEffect } from "preact/hooks";
import type { Status } from "./api";
import { useLiveBooks, usePolled, type WantedBooks } from "./data";
import { useKeys } from "./keys";
import { useRoute, write } from "./route";
import "./style.css";
import { Cardinality } from "./views/cardinality";
import { Explain } from "./views/explain";
import { Fleet } from "./views/fleet";
import { Help } from "./views/help";
import { Metrics } from "./views/metrics";
import { OUTPUTS_BOOKS, Outputs } from "./views/outputs";
import { OVERVIEW_BOOKS, Overview } from "./views/overview";
import { Tail } from "./views/tail";

const VIEWS = [
  ["overview", "Overview"],
  ["metrics", "Metrics"],
  ["cardinality", "Cardinality"],
  ["tail", "Tail"],
  ["explain", "Explain"],
  ["outputs", "Outputs"],
] as const;

/** The books of a view; other views have none. */
function wantedBooks(view: string): WantedBooks {
  if (view === "outputs") return OUTPUTS_BOOKS;
  return VIEWS.some(([known]) => known === view && known !== "overview") || view === "help"
    ? { names: [] }
    : OVERVIEW_BOOKS;
}

function Page() {
  const route = useRoute();
  const live = useLiveBooks(wantedBooks(route.view));
  const open = (view: string) => {
    location.hash = write(view, {});
  };
  useKeys({
    "?": () => open("help"),
    "/": () => document.querySelector<HTMLElement>("main input:not([type=checkbox])")?.focus(),
    ...Object.fromEntries(VIEWS.map(([view], at) => [String(at + 1), () => open(view)])),
  });
  // A narrow window scrolls the navigation.
  useEffect(() => {
    const current = document.querySelector("nav [aria-current]");
    current?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [route.view]);
  // A merge has no books per second, only its status.
  const merge = usePolled<Status>(live.connected ? undefined : "status", { losses: 1 }, 2);
  const fleet = live.connected ? undefined : merge.data?.fleet;
  if (merge.data && fleet) {
    return (
      <>
        <header>
          <span class="brand">weir merge</span>
          <span class={merge.error ? "state bad" : "state good"} role="status">
            {merge.error ? "the merge does not respond; the page resumes when it does" : "live"}
          </span>
        </header>
        <main>
          <Fleet status={merge.data} fleet={fleet} />
        </main>
      </>
    );
  }
  return (
    <>
      <header>
        <a class="brand" href={write("overview", {})}>
          weir
        </a>
        <nav aria-label="views">
          {VIEWS.map(([view, title]) => (
            <a key={view} href={write(view, {})} aria-current={route.view === view ? "page" : undefined}>
              {title}
            </a>
          ))}
          <a
            href={write("help", {})}
            aria-label="help and keys"
            title="help and keys"
            aria-current={route.view === "help" ? "page" : undefined}
          >
            ?
          </a>
        </nav>
        <span class={live.connected ? "state good" : "state bad"} role="status">
          {live.connected ? "live" : "the agent does not respond; the page resumes when it does"}
        </span>
      </header>
      <main>
        {route.view === "metrics" ? (
          <Metrics params={route.params} flushes={live.flushes} />
        ) : route.view === "cardinality" ? (
          <Cardinality flushes={live.flushes} />
        ) : route.view === "tail" ? (
          <Tail params={route.params} />
        ) : route.view === "explain" ? (
          <Explain params={route.params} />
        ) : route.view === "help" ? (
          <Help />
        ) : route.view === "outputs" ? (
          <Outputs live={live} />
        ) : (
          <Overview live={live} />
        )}
      </main>
    </>
  );
}

const root = document.getElementById("page");
if (root) render(<Page />, root);
