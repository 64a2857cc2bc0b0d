#!/usr/bin/env python3
"""Proves that the dashboard works in a real browser, with a real model.

    dashboard_test.py HEADSTART SCREENSHOT-FOLDER [unittest arguments]

HEADSTART_TEST_SMOLLM2 names the model, HEADSTART_TEST_CLIENTS the folder that holds the packages of
clients.txt (`./run test` sets both). The browser is Debian's chromium, driven by playwright; it may
reach the server and nothing else. Look at the screenshots after a change of the page.
"""
import os
import re
import shutil
import sys
import tempfile
import threading
import unittest

MODEL = os.environ.get("HEADSTART_TEST_SMOLLM2", "")
CLIENTS = os.environ.get("HEADSTART_TEST_CLIENTS", "")
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
if not MODEL or not CLIENTS or not BROWSER:
    print("HEADSTART_TEST_SMOLLM2, HEADSTART_TEST_CLIENTS or chromium is missing; ./run test sees to it")
    sys.exit(77)
sys.path.insert(0, CLIENTS)

from playwright.sync_api import expect, sync_playwright

import server_test
from server_test import CHAT, NO_END, TEXT, Running, prompt, wait_for

server_test.PROGRAM = sys.argv.pop(1) if len(sys.argv) > 2 else ""
SCREENSHOTS = sys.argv.pop(1) if len(sys.argv) > 1 else tempfile.mkdtemp()
PATIENCE_MS = server_test.PATIENCE_S * 1000
FLAGS = ("-c", "2048", "--parallel", "1", "--cache-ram", "64M")
PARTS = ("queue", "wait", "lookup", "load", "compute")

# What a JavaScript client does: reads the body as it comes, event by event.
STREAM_IN_PAGE = """async (body) => {
  const response = await fetch('/v1/chat/completions', {
    method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const out = {type: response.headers.get('Content-Type'), reads: 0, text: '', last: '', finish: ''};
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return out;
    ++out.reads;
    const blocks = (rest + value).split('\\n\\n');
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith(':')) continue;
      out.last = block.slice('data: '.length);
      if (out.last === '[DONE]') continue;
      const choice = JSON.parse(out.last).choices[0];
      out.text += choice.delta.content ?? '';
      out.finish = choice.finish_reason ?? out.finish;
    }
  }
}"""


class DashboardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.makedirs(SCREENSHOTS, exist_ok=True)
        cls.cache = tempfile.TemporaryDirectory()
        # A store on disk from an earlier run, so that the disk tier has something to say.
        with Running(*FLAGS, cache=cls.cache.name) as earlier:
            for topic in ("rivers", "stored ones"):
                earlier.post(TEXT, {"prompt": prompt(60, topic), "max_tokens": 1})
        cls.server = Running(*FLAGS, cache=cls.cache.name)
        cls.url = f"http://127.0.0.1:{cls.server.port}/"
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=BROWSER)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()
        cls.server.__exit__()
        cls.cache.cleanup()

    def setUp(self):
        self.errors, self.requests = [], []

    def tearDown(self):
        self.assertEqual(self.errors, [])
        abroad = [url for url in self.requests if not url.startswith(self.url)]
        self.assertEqual(abroad, [])

    def open(self, width=1280, height=900, scheme="light"):
        context = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE_MS)
        expect.set_options(timeout=PATIENCE_MS)
        self.addCleanup(context.close)
        page = context.new_page()
        page.on("console", lambda message: self.note(message))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(self.url)
        expect(page.locator("#status")).to_have_text("live")
        return page

    def note(self, message):
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def shoot(self, page, name):
        page.screenshot(path=os.path.join(SCREENSHOTS, name + ".png"), full_page=True)

    def ask(self, text, **more):
        return self.server.post(TEXT, {"prompt": text, "max_tokens": 4, "temperature": 0} | more)

    def newest(self, page, state):
        row = page.locator(f"#requests > li[data-state={state}]").first
        expect(row).to_be_visible()
        return row

    def fills(self, page, number):
        """Colours of a lattice's cells, by source."""
        cells = page.locator(f"figure[data-number='{number}'] rect.cell")
        expect(cells.first).to_be_attached()
        return dict(cells.evaluate_all(
            "cells => cells.map(c => [c.dataset.source, getComputedStyle(c).fill])"))

    def test_shows_where_each_cell_came_from(self):
        before = self.server.metric('cache_puts_total{tier="ram"}')
        self.ask(prompt(60, "stored ones") + " Then something new.")
        wait_for(lambda: self.server.metric('cache_puts_total{tier="ram"}') > before + 3, "copies in RAM")
        self.ask(prompt(60, "stored ones") + " And something else.")
        self.ask("Whatever else was asked, this is new.", cache_salt="new")
        page = self.open()
        self.newest(page, "done")
        numbers = page.locator("#lattices figure").evaluate_all("all => all.map(f => f.dataset.number)")
        colours = {}
        for number in numbers:
            colours |= self.fills(page, number)
        self.assertLessEqual({"disk", "ram", "computed"}, set(colours))
        self.assertEqual(len(set(colours.values())), len(colours), colours)
        newest = page.locator("#lattices figure").first
        self.assertIn("100 % computed", newest.inner_text())
        newest.locator("summary").click()
        self.assertIn("computed", newest.locator("table").inner_text())

    def test_shows_a_request_while_it_runs_and_after(self):
        page = self.open()
        client = threading.Thread(target=self.ask, args=(prompt(80, "a running one"),),
                                  kwargs={"max_tokens": 400, "logit_bias": NO_END})
        client.start()
        self.addCleanup(client.join)
        row = self.newest(page, "running")
        expect(row.locator(".state")).to_have_text("generating")
        expect(row).to_contain_text(re.compile(r"First token: .*compute"))
        number = row.get_attribute("data-number")
        self.shoot(page, "running")
        row = page.locator(f"#requests > li[data-number='{number}']")
        expect(row).to_have_attribute("data-state", "done")
        expect(row).to_contain_text("400\u00a0generated")
        widths = row.locator(".bar > span").evaluate_all(
            "spans => spans.map(s => [s.className, s.getBoundingClientRect().width])")
        self.assertEqual([name for name, _ in widths], [f"part-{part}" for part in PARTS])
        self.assertGreater(dict(widths)["part-compute"], 10)
        self.assertIn("compute", row.locator(".bar").get_attribute("aria-label"))
        expect(page.locator("#chart-ttft")).to_have_attribute("aria-label", re.compile(f"#{number} "))

    def test_fits_every_screen_and_theme(self):
        self.ask(prompt(60) + " Then something new.")
        self.ask("Unlike the others.")
        backgrounds = set()
        for scheme in ("light", "dark"):
            for name, width in (("wide", 1280), ("phone", 360), ("narrow", 320)):
                page = self.open(width, 800, scheme)
                self.newest(page, "done")
                self.assertEqual(page.evaluate("document.documentElement.scrollWidth"), width, name)
                out = page.evaluate("""() => [...document.querySelectorAll('body *')]
                    .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).map(e => e.outerHTML.slice(0, 80))""")
                self.assertEqual(out, [], name)
                backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
                self.shoot(page, f"{scheme}-{name}")
        self.assertEqual(len(backgrounds), 2)

    def test_theme_is_chosen_by_keyboard_and_kept(self):
        page = self.open()
        button = page.locator("#theme")
        page.keyboard.press("Tab")
        expect(button).to_be_focused()
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        expect(button).to_have_text("Theme: dark")
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.reload()
        expect(button).to_have_text("Theme: dark")
        self.assertEqual(page.evaluate("getComputedStyle(document.body).backgroundColor"), dark)

    def test_asks_for_a_key_where_the_server_wants_one(self):
        page = self.open()

        def locked(route):
            if route.request.headers.get("authorization") == "Bearer let me in":
                route.continue_()
            else:
                route.fulfill(status=401, json={"error": {"message": "no key"}})

        page.route("**/headstart/state", locked)
        page.reload()
        key = page.locator("#key")
        expect(key).to_be_focused()
        key.fill("wrong")
        key.press("Enter")
        expect(page.locator("#notice")).to_have_text("The server refused this key.")
        key.fill("let me in")
        key.press("Enter")
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#key-form")).to_be_hidden()
        page.reload()  # kept in this tab
        expect(page.locator("#status")).to_have_text("live")
        # The browser itself reports each 401.
        self.errors = [e for e in self.errors if "401" not in e]

    def test_inserts_values_as_text(self):
        page = self.open()
        evil = "<img src=x onerror=alert(1)>"

        def poison(route):
            state = route.fetch().json()
            state["model"] = state["kernels"] = evil
            for request in state["requests"]:
                request["endpoint"] = request["id"] = evil
                for cell in request.get("cells", []):
                    cell[4] = evil
            route.fulfill(json=state)

        self.ask("One more.")
        page.route("**/headstart/state", poison)
        page.reload()
        expect(page.locator("#kernels")).to_have_text(evil)
        expect(page.locator("#lattices figure").first).to_contain_text(evil)
        self.assertEqual(page.locator("img").count(), 1)  # the page's own

    def test_says_when_the_server_is_gone_and_comes_back(self):
        page = self.open()
        page.route("**/headstart/state", lambda route: route.abort())
        expect(page.locator("#status")).to_have_text("no answer")
        page.unroute("**/headstart/state")
        expect(page.locator("#status")).to_have_text("live")
        expect(page.locator("#notice")).to_be_hidden()
        self.errors = [e for e in self.errors if "ERR_FAILED" not in e]

    def test_a_page_streams_a_chat_with_fetch(self):
        page = self.open()
        got = page.evaluate(STREAM_IN_PAGE, {
            "model": "any", "stream": True, "max_tokens": 24, "temperature": 0, "logit_bias": NO_END,
            "messages": [{"role": "user", "content": "Count to ten."}]})
        self.assertEqual(got["type"], "text/event-stream")
        self.assertEqual(got["last"], "[DONE]")
        self.assertEqual(got["finish"], "length")
        self.assertGreater(got["reads"], 4)  # as it comes, not at the end
        whole = self.server.post(CHAT, {
            "max_tokens": 24, "temperature": 0, "logit_bias": NO_END,
            "messages": [{"role": "user", "content": "Count to ten."}]})
        self.assertEqual(got["text"], whole["choices"][0]["message"]["content"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
