// node render.mjs PAGE.html PICTURE.png WIDTH light|dark: draws a page as a user sees it, and prints one line of JSON:
// its title, its width and height, what it logged as an error, and every URL that it asked for.
import { fileURLToPath, pathToFileURL } from "node:url";

import bundled from "@sparticuz/chromium";
import { chromium } from "playwright-core";

const [html, picture, width, colorScheme] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: await bundled.executablePath(),
  env: { ...process.env, FONTCONFIG_FILE: fileURLToPath(new URL("fonts.conf", import.meta.url)) },
  args: bundled.args.filter((argument) => !argument.startsWith("--headless")),
});
try {
  const page = await browser.newPage({ viewport: { width: Number(width), height: 900 }, colorScheme });
  const errors = [];
  const requests = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => requests.push(request.url()));
  await page.goto(pathToFileURL(html).href);
  const found = await page.evaluate(() => ({
    title: document.title,
    width: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    pictures: document.querySelectorAll("svg").length,
  }));
  await page.screenshot({ path: picture, fullPage: true });
  console.log(JSON.stringify({ ...found, errors, requests }));
} finally {
  await browser.close();
}
