#!/usr/bin/env python3
"""Proves `headstart serve` with a real model: bytes on the wire, reuse, queue, cancelling, stopping.

    server_test.py HEADSTART [unittest arguments]      HEADSTART_TEST_SMOLLM2 names the model

Rules that need no model are tested beside the source (src/server/http_server_test.cc). To add a
case: a method of ServerTest, with a server of its own where it needs other flags.
"""
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

PROGRAM = ""
MODEL = os.environ.get("HEADSTART_TEST_SMOLLM2", "")
PATIENCE_S = 240  # the machine may be busy with other tests
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
NO_END = {"0": -100, "2": -100}  # SmolLM2's end tokens


class Running:
    """A server process with a cache folder of its own or a given one."""

    def __init__(self, *flags, cache=None, tls=None):
        self.tls = ssl.create_default_context(cafile=tls) if tls else None
        self.own = None if cache else tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "-m", MODEL, "--port", "0", "--cache-dir", cache or self.own.name, *flags],
            stderr=subprocess.PIPE, text=True)
        self.log = ""
        while not (found := re.search(r"https?://[\d.]+:(\d+)", self.log)):
            line = self.process.stderr.readline()
            if not line:
                raise AssertionError("the server ended: " + self.log)
            self.log += line
        self.port = int(found.group(1))
        threading.Thread(target=self._read_log, daemon=True).start()
        wait_for(lambda: self.get("/health")[0] == 200, "health")

    def _read_log(self):
        for line in self.process.stderr:
            self.log += line

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.process.stderr.close()
        if self.own:
            self.own.cleanup()

    def call(self, method, path, body=None):
        where = ("127.0.0.1", self.port)
        connection = (
            http.client.HTTPSConnection(*where, timeout=PATIENCE_S, context=self.tls) if self.tls
            else http.client.HTTPConnection(*where, timeout=PATIENCE_S))
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body):
        status, _, text = self.call("POST", path, body)
        if status != 200:
            raise AssertionError(f"{status}: {text}")
        return json.loads(text)

    def metric(self, name):
        found = re.search(r"^headstart_" + re.escape(name) + r" (\S+)$", self.get("/metrics")[2], re.M)
        return float(found.group(1)) if found else 0.0


class Raw:
    """A POST whose response bytes are seen as they come."""

    def __init__(self, server, path, body):
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S)
        self.socket.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                            % (path.encode(), len(data), data))
        self.bytes = b""

    def until(self, what):
        while what not in self.bytes:
            more = self.socket.recv(65536)
            if not more:
                raise AssertionError(f"closed before {what}: {self.bytes}")
            self.bytes += more
        return self.bytes

    def until_closed(self):
        while more := self.socket.recv(65536):
            self.bytes += more
        return self.bytes

    def hang_up(self):
        self.socket.close()


def wait_for(holds, what):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("waited for " + what)
        time.sleep(0.05)


def dechunk(response):
    head, _, rest = response.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head, head
    out = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        n = int(size, 16)
        if n == 0:
            assert rest == b"\r\n", rest
            return out.decode()
        assert rest[n:n + 2] == b"\r\n"
        out, rest = out + rest[:n], rest[n + 2:]
    raise AssertionError("no last chunk")


def events(sse):
    blocks = sse.split("\n\n")
    assert blocks.pop() == "", "the last event ends with an empty line"
    return [b for b in blocks if not b.startswith(":")]


def prompt(n_sentence, topic="rivers"):
    # Begins with the topic, so that prompts on different ones share nothing.
    return " ".join(f"{topic} are what sentence {i} is about." for i in range(n_sentence))


def text_of(answer):
    return answer["choices"][0]["text"]


def is_closed(connection):
    """By the server; with a reset where its listener had not yet taken the connection."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Running("-c", "2048")

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def test_streams_by_the_rules(self):
        raw = Raw(self.server, CHAT, {
            "messages": [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
                         {"role": "user", "content": "Name an ocean: é 😀"}],
            "max_tokens": 8, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
            "unknown_field": 1, "tools": None})
        response = raw.until(b"\r\n0\r\n\r\n")
        raw.hang_up()
        self.assertTrue(response.startswith(b"HTTP/1.1 200 OK\r\n"))
        self.assertIn(b"Content-Type: text/event-stream\r\n", response)
        sse = dechunk(response)
        self.assertTrue(sse.startswith(": ping\n\n"))
        lines = events(sse)
        self.assertEqual(lines.pop(), "data: [DONE]")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        self.assertEqual(len({(c["id"], c["created"], c["object"]) for c in chunks}), 1)
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(chunks[-1]["choices"], [])
        usage = chunks[-1]["usage"]
        self.assertLessEqual(usage["completion_tokens"], 8)
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertIn(chunks[-2]["choices"][0]["finish_reason"], ("stop", "length"))
        self.assertTrue(all(c["choices"][0]["finish_reason"] is None for c in chunks[:-2]))

    def test_stream_and_whole_answer_are_the_same_text(self):
        body = {"prompt": prompt(3), "max_tokens": 12, "temperature": 0}
        whole = text_of(self.server.post(TEXT, body))
        raw = Raw(self.server, TEXT, {**body, "stream": True})
        lines = events(dechunk(raw.until(b"\r\n0\r\n\r\n")))[:-1]
        raw.hang_up()
        self.assertEqual("".join(text_of(json.loads(line[6:])) for line in lines), whole)

    def test_repeated_prompt_computes_one_token(self):
        body = {"prompt": prompt(30, "bridges"), "max_tokens": 1, "temperature": 0}
        cold = self.server.post(TEXT, body)
        wait_for(lambda: self.server.metric("store_queue_bytes") == 0, "storing")
        warm = self.server.post(TEXT, body)
        n = cold["usage"]["prompt_tokens"]
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreaterEqual(warm["usage"]["prompt_tokens_details"]["cached_tokens"], n - 1)
        self.assertEqual(text_of(warm), text_of(cold))
        parts = warm["headstart"]
        total = sum(parts[p + "_ms"] for p in ("queue", "wait", "lookup", "load", "compute"))
        self.assertLessEqual(total, parts["ttft_ms"] * 1.05 + 5)

    def test_a_slot_outlives_the_store(self):
        with tempfile.TemporaryDirectory() as saved:
            flags = ("-c", "2048", "--parallel", "1", "--slot-save-path", saved)
            body = {"prompt": prompt(30, "rivers"), "max_tokens": 4, "temperature": 0}
            with Running(*flags) as first:
                answer = first.post(TEXT, body)
                kept = first.post("/slots/0?action=save", {"filename": "rivers"})
                self.assertGreaterEqual(kept["n_saved"], answer["usage"]["prompt_tokens"])
            with Running(*flags) as second:
                back = second.post("/slots/0?action=restore", {"filename": "rivers"})
                self.assertEqual(back["n_restored"], kept["n_saved"])
                again = second.post(TEXT, body)
                cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached, answer["usage"]["prompt_tokens"] - 1)
                self.assertEqual(text_of(again), text_of(answer))
                second.post("/slots/0?action=erase", {})
                cold = second.post(TEXT, body)["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cold, 0)

    # Case 19: a timestamp at the top of the prompt.
    def test_says_which_token_cost_the_reuse(self):
        text = prompt(30, "clocks")
        first = {"prompt": "It is 10:41. " + text, "max_tokens": 1, "temperature": 0}
        second = {**first, "prompt": "It is 10:42. " + text}
        self.server.post(TEXT, first)
        wait_for(lambda: self.server.metric("store_queue_bytes") == 0, "storing")
        said = self.server.post(TEXT, second)["headstart"]
        self.assertLess(said["n_cached_exact"] + said["n_cached_rounded"], 12)
        self.assertTrue(said["divergence"]["prompt_text"].startswith("2. "), said)
        self.assertTrue(said["divergence"]["stored_text"].startswith("1. "), said)

    def test_reuse_survives_a_restart(self):
        with tempfile.TemporaryDirectory() as cache:
            body = {"prompt": prompt(30, "castles"), "max_tokens": 4, "temperature": 0}
            with Running("-c", "2048", cache=cache) as first:
                cold = first.post(TEXT, body)
            with Running("-c", "2048", cache=cache) as second:
                warm = second.post(TEXT, body)
        self.assertGreaterEqual(warm["usage"]["prompt_tokens_details"]["cached_tokens"],
                                cold["usage"]["prompt_tokens"] - 1)
        self.assertEqual(text_of(warm), text_of(cold))

    def test_seed_gives_one_text_cold_and_warm(self):
        body = {"prompt": prompt(4, "winds"), "max_tokens": 8, "temperature": 0.9, "seed": 11,
                "headstart": {"reuse": "strict"}}
        cold = self.server.post(TEXT, {**body, "headstart": {"reuse": "off"}})
        self.assertEqual(cold["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.server.post(TEXT, body)
        wait_for(lambda: self.server.metric("store_queue_bytes") == 0, "storing")
        warm = self.server.post(TEXT, body)
        self.assertGreater(warm["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(text_of(warm), text_of(cold))
        other = self.server.post(TEXT, {**body, "seed": 12})
        self.assertNotEqual(text_of(other), text_of(cold))
        self.assertEqual(other["headstart"]["seed"], 12)

    def test_salts_do_not_share(self):
        body = {"prompt": prompt(20, "islands"), "max_tokens": 1, "cache_salt": "alice"}
        self.server.post(TEXT, body)
        wait_for(lambda: self.server.metric("store_queue_bytes") == 0, "storing")
        for salt, shares in (("bob", False), ("alice", True)):
            usage = self.server.post(TEXT, {**body, "cache_salt": salt})["usage"]
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"] > 0, shares, salt)

    def test_generates_exactly_as_many_tokens_as_asked(self):
        for n in (0, 1, 2):
            answer = self.server.post(TEXT, {"prompt": prompt(2), "max_tokens": n, "temperature": 0,
                                             "logit_bias": NO_END})
            self.assertEqual(answer["usage"]["completion_tokens"], n)
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")
            self.assertEqual(text_of(answer) == "", n == 0)

    def test_stop_string_ends_the_text(self):
        body = {"prompt": "one, two, three, four, five,", "max_tokens": 12, "temperature": 0}
        full = text_of(self.server.post(TEXT, body))
        stop = full[len(full) // 2:][:3]
        answer = self.server.post(TEXT, {**body, "stop": stop})
        self.assertEqual(text_of(answer), full[:full.index(stop)])
        self.assertEqual(answer["choices"][0]["finish_reason"], "stop")

    def test_context_that_is_exceeded_is_named(self):
        status, _, text = self.server.call("POST", TEXT, {"prompt": prompt(400)})
        error = json.loads(text)["error"]
        self.assertEqual((status, error["code"]), (400, "context_length_exceeded"))
        self.assertEqual(error["n_ctx"], 2048)
        self.assertGreater(error["n_prompt_tokens"], 2048)

    def test_bad_requests_are_400(self):
        for body in ({}, {"prompt": None}, {"prompt": ""}, {"prompt": []}, {"prompt": [10**8]},
                     {"prompt": "x", "temperature": -1}, {"prompt": "x", "n": 9}):
            status, _, text = self.server.call("POST", TEXT, body)
            self.assertEqual(status, 400, body)
            self.assertEqual(json.loads(text)["error"]["type"], "invalid_request_error")

    def ask_at_once(self, bodies):
        answers = [None] * len(bodies)

        def ask(i):
            answers[i] = self.server.post(TEXT, bodies[i])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        return answers

    def test_unrelated_prompts_do_not_mix(self):
        bodies = [{"prompt": prompt(4, topic), "max_tokens": 4, "temperature": 0}
                  for topic in ("rain", "trains", "bread", "stars")]
        alone = [text_of(self.server.post(TEXT, {**b, "headstart": {"reuse": "off"}})) for b in bodies]
        answers = [text_of(a) for a in self.ask_at_once(bodies * 4)]
        self.assertEqual(answers, alone * 4)

    def test_requests_with_one_cold_prefix_share_its_prefill(self):
        shared = prompt(40, "lanterns")
        bodies = [{"prompt": f"{shared} Question {i}?", "max_tokens": 4, "temperature": 0}
                  for i in range(8)]
        answers = self.ask_at_once(bodies)
        computed = sorted(a["usage"]["prompt_tokens"]
                          - a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)
        n_question = 16  # more tokens than a question has
        self.assertGreater(computed[-1], 10 * n_question)  # one computes the prefix,
        self.assertLess(computed[-2], n_question)          # the others wait for it
        for body, answer in zip(bodies, answers):
            alone = self.server.post(TEXT, {**body, "headstart": {"reuse": "off"}})
            self.assertEqual(text_of(answer), text_of(alone))

    def test_client_that_leaves_in_prefill_frees_the_engine(self):
        before = self.server.metric('completions_total{outcome="cancelled"}')
        raw = Raw(self.server, TEXT, {"prompt": prompt(180, "leaving"), "max_tokens": 500, "stream": True})
        raw.until(b": ping")
        wait_for(lambda: self.server.metric("requests_running") == 1, "the request to run")
        raw.hang_up()
        wait_for(lambda: self.server.metric('completions_total{outcome="cancelled"}') == before + 1,
                 "the cancelling")
        self.server.post(TEXT, {"prompt": "x", "max_tokens": 1})

    def test_queue_is_bounded_and_in_order(self):
        with Running("-c", "2048", "--queue", "1", "--parallel", "1") as server:
            endless = {"prompt": "Once", "max_tokens": 2000, "stream": True, "logit_bias": NO_END}
            first = Raw(server, TEXT, endless)
            first.until(b"data: ")
            second = Raw(server, TEXT, {"prompt": "x", "max_tokens": 1, "stream": True})
            second.until(b": ping")
            status, headers, text = server.call("POST", TEXT, {"prompt": "x", "max_tokens": 1})
            self.assertEqual((status, json.loads(text)["error"]["code"]), (503, "queue_full"))
            self.assertGreaterEqual(int(headers["Retry-After"]), 1)
            self.assertNotIn(b"data: ", second.bytes)
            first.hang_up()
            second.until(b"[DONE]")  # and only the one that left was cancelled
            self.assertEqual(server.metric('completions_total{outcome="cancelled"}'), 1)
            second.hang_up()

    def test_stops_on_sigterm(self):
        with Running("-c", "2048", "--stop-grace", "0") as server:
            running = Raw(server, TEXT, {"prompt": "Once", "max_tokens": 2000, "stream": True,
                                         "logit_bias": NO_END})
            running.until(b"data: ")
            idle = socket.create_connection(("127.0.0.1", server.port))
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(PATIENCE_S), 0)
            end = running.until_closed()
            self.assertIn(b'"code":"stopping"', end)
            self.assertNotIn(b"[DONE]", end)
            self.assertTrue(is_closed(idle))
            idle.close()
            running.hang_up()

    def test_logs_hold_no_prompt(self):
        secret = "xyzzy-plugh"
        self.server.call("POST", TEXT, {"prompt": secret, "max_tokens": 1})
        self.server.call("POST", TEXT, {"prompt": secret, "stop": 5})
        self.server.call("POST", TEXT, {"prompt": "x", "grammar": "root ::= " + secret + " ("})
        self.server.call("POST", CHAT, {"messages": [{"role": secret}]})
        self.server.call("POST", CHAT, {"messages": [{"role": "user", "content": "x"}],
                                        "json_schema": {"type": secret}})
        self.server.call("POST", "/v1/" + secret, {})
        self.assertNotIn(secret, self.server.log)


if __name__ == "__main__":
    if not MODEL:
        print("HEADSTART_TEST_SMOLLM2 is not set")
        sys.exit(77)
    PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
