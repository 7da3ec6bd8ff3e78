// The URL has the whole state of the view, so that a link shows the same to a colleague. What a user chooses is in the history of the
// browser, so that Back undoes it.

import { useLayoutEffect, useState } from "preact/hooks";

export interface Route {
  view: string;
  params: URLSearchParams;
}

export type Change = Record<string, string | string[] | undefined>;

export function parse(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const split = text.indexOf("?");
  const view = split < 0 ? text : text.slice(0, split);
  return { view: view || "overview", params: new URLSearchParams(split < 0 ? "" : text.slice(split + 1)) };
}

export function write(view: string, params: Change): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (Array.isArray(value)) for (const one of value) query.append(name, one);
    else if (value) query.set(name, value);
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

export function useRoute(): Route {
  const [route, setRoute] = useState(() => parse(location.hash));
  // At once: a change of the address before a later effect would not be seen.
  useLayoutEffect(() => {
    const changed = () => setRoute(parse(location.hash));
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

/** The address of the current view with other parameters. */
export function changed(params: Change): string {
  const { view, params: old } = parse(location.hash);
  const all: Change = {};
  for (const name of new Set(old.keys())) all[name] = old.getAll(name);
  return write(view, { ...all, ...params });
}

/** Replaces parameters of the current view, without an entry in the history of the browser: for text that is being typed. */
export function change(params: Change) {
  history.replaceState(null, "", changed(params));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** The same with an entry. */
export function go(params: Change) {
  const next = changed(params);
  if (next === location.hash) return;
  history.pushState(null, "", next);
  dispatchEvent(new HashChangeEvent("hashchange"));
}
