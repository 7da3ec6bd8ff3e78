import { defineConfig } from "vite";

export default defineConfig({
  base: "./",
  build: {
    // Names without a digest: the page is always that of the binary which serves it.
    rollupOptions: {
      output: { entryFileNames: "page.js", chunkFileNames: "[name].js", assetFileNames: "page[extname]" },
    },
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  // `npm run dev` shows the agent of `weir run` on this machine.
  server: { proxy: { "/api": "http://127.0.0.1:8127" } },
});
