// Keys. Each view says what its keys do, and the help page lists all of them.

import { useEffect, useRef } from "preact/hooks";

export const KEYS: [string, string][] = [
  ["1 to 6", "opens a view, in the order of the navigation"],
  ["/", "to the search or filter of the view"],
  ["?", "shows this page"],
  ["k", "shows the next kind of metrics in the list, and after the last one all"],
  ["[ and ]", "moves the window of a chart by half of it"],
  ["+ and -", "zooms in and out"],
  ["u", "undoes the last choice, as Back does; so does a double click on a chart"],
  ["a", "shows everything that is stored"],
  ["l", "logarithmic scale, of a heat map linear scale"],
  ["0", "axis from zero, or from the data"],
  ["v", "shows the values as a table"],
];

/** Calls the action of a pressed key, unless text is being typed. */
export function useKeys(actions: Record<string, () => void>) {
  const now = useRef(actions);
  now.current = actions;
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const element = event.target as HTMLElement | null;
      if (element?.closest("input:not([type=checkbox]), textarea, select")) return;
      const action = now.current[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}
