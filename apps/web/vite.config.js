import { defineConfig } from "vite";

// Addresses are relative to the page's folder: a proxy may serve the service below a path of its own.
export default defineConfig({
  base: "./",
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../api/app/_ui",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false }, // would be an inline script, which the page's policy forbids
    assetsInlineLimit: 0,
    reportCompressedSize: true,
  },
});
