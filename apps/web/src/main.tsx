import { render } from "preact";
import { App } from "./app";
import { keepFocusOfButtons } from "./ui/kept-focus";
import "./styles.css";

const root = document.getElementById("app");
if (root) render(<App />, root);
keepFocusOfButtons();
