import { defineConfig } from "vite";

// Addresses are relative to the page's folder: a proxy may serve the service below a path of its own.
export default defineConfig({
  base: "./",
  experimental: {
    // docs.html is served at /docs, beside the folder that the files are in.
    renderBuiltUrl: (file, { hostId }) => (hostId === "docs.html" ? `ui/${file}` : { relative: true }),
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../api/app/_ui",
    emptyOutDir: true,
    rollupOptions: { input: ["index.html", "docs.html"] },
    license: { fileName: "licenses.md" },
    chunkSizeWarningLimit: 2000, // Swagger UI
    target: "es2022",
    modulePreload: { polyfill: false }, // would be an inline script, which the page's policy forbids
    assetsInlineLimit: 0,
    reportCompressedSize: true,
  },
});
