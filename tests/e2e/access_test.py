#!/usr/bin/env python3
"""Proves who may use `headstart serve`, and how it ends, with a real model: keys, principals' chunks,
TLS, deadlines, progress, signals, and logs that hold no secret.

    access_test.py HEADSTART [unittest arguments]      HEADSTART_TEST_SMOLLM2 names the model

To add a case: a method with a server of its own (server_test.Running), named flags, and calls.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import server_test as base
from server_test import CHAT, NO_END, PATIENCE_S, TEXT, Raw, Running, prompt, wait_for

ENDLESS = {"prompt": "Once", "max_tokens": 2000, "stream": True, "logit_bias": NO_END}


def call(server, path, body=None, **headers):
    """Status, headers and text; header names with _ for -."""
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}",
                                     None if body is None else json.dumps(body).encode(),
                                     {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, dict(response.headers), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def cached(answer):
    status, _, text = answer
    assert status == 200, text
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def error_code(answer):
    return json.loads(answer[2])["error"]["code"]


class AccessTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, name, text, mode=0o600):
        path = os.path.join(self.folder.name, name)
        with open(path, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(path, mode)
        return path

    def failing(self, *flags):
        """What the program says when it refuses to start."""
        done = subprocess.run([base.PROGRAM, "serve", "-m", base.MODEL, "--port", "0", *flags],
                              stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        self.assertIn(done.returncode, (1, 2), done.stderr)  # an error, or wrong usage
        return done.stderr

    def stored(self, server, key):
        def settled():
            text = call(server, "/metrics", X_Api_Key=key)[2]
            return "headstart_store_queue_bytes 0\n" in text
        wait_for(settled, "storing")

    def test_keys_never_share_chunks_and_are_nowhere_to_be_read(self):
        keys = self.file("keys", "# team\nsk-alpha-51\nsk-beta-52\n", 0o644)
        cache = os.path.join(self.folder.name, "cache")
        with Running("-c", "2048", "-v", "--api-key-file", keys, "--api-key", "sk-gamma-53",
                     cache=cache) as server:
            body = {"prompt": prompt(20, "secretharbours"), "max_tokens": 1, "temperature": 0}
            self.assertEqual(call(server, TEXT, body)[0], 401)
            self.assertEqual(call(server, TEXT, body, Authorization="Bearer sk-wrong-54")[0], 401)
            answers = []
            for key in ("sk-alpha-51", "sk-alpha-51", "sk-beta-52", "sk-gamma-53", "sk-alpha-51"):
                answers.append(cached(call(server, TEXT, body, Authorization="Bearer " + key)))
                self.stored(server, key)
            self.assertEqual([n > 0 for n in answers], [False, True, False, False, True], answers)
            salted = {**body, "cache_salt": "mine"}
            self.assertEqual(cached(call(server, TEXT, salted, X_Api_Key="sk-alpha-51")), 0)
            metrics = call(server, "/metrics", X_Api_Key="sk-alpha-51")[2]
            call(server, "/v1/sk-path-55?q=sk-query-56", {}, X_Api_Key="sk-alpha-51")
            call(server, CHAT, {"messages": [{"role": "sk-role-57"}]}, X_Api_Key="sk-alpha-51")
            process, log = server.process, server.log
            self.assertIn("chmod 600", log)
        process.wait(PATIENCE_S)
        for what in ("sk-", "secretharbours"):
            self.assertNotIn(what, server.log)
            self.assertNotIn(what, metrics)
        kept = b"".join(path.read_bytes() for path in pathlib.Path(cache).rglob("*")
                        if path.is_file())
        self.assertGreater(len(kept), 0)
        self.assertNotIn(b"sk-alpha", kept)

    def test_a_key_may_come_from_the_environment(self):
        os.environ["HEADSTART_API_KEY"] = "sk-env"
        self.addCleanup(os.environ.pop, "HEADSTART_API_KEY")
        with Running("-c", "512") as server:
            self.assertEqual(call(server, "/v1/models")[0], 401)
            self.assertEqual(call(server, "/v1/models", X_Api_Key="sk-env")[0], 200)

    def test_faulty_options_are_refused_with_a_reason_and_without_the_key(self):
        self.assertIn("keys:2: ", self.failing("--api-key-file", self.file("keys", "good\nnot good\n")))
        self.assertIn("missing", self.failing("--api-key-file", self.folder.name + "/missing"))
        said = self.failing("--api-key", "not good")
        self.assertNotIn("not good", said)
        self.assertIn("nonsense", self.failing("--cors-origin", "nonsense"))
        self.assertIn("--ssl-key-file", self.failing("--ssl-cert-file", "x.pem"))

    def test_reachable_without_keys_is_said_once(self):
        with Running("-c", "512", "--host", "0.0.0.0") as server:
            self.assertEqual(server.log.count("whoever reaches"), 1)
            self.assertEqual(call(server, "/v1/models", Host="evil.example")[0], 403)
        with Running("-c", "512", "--host", "0.0.0.0", "--api-key", "k") as server:
            self.assertNotIn("whoever reaches", server.log)
        with Running("-c", "512") as server:
            self.assertNotIn("whoever reaches", server.log)

    def test_deadlines_free_the_engine(self):
        with Running("-c", "2048", "--parallel", "1") as server:
            slow = {"prompt": prompt(170, "leaving"), "max_tokens": 500, "logit_bias": NO_END}
            answer = call(server, TEXT, {**slow, "timeout_ms": 100})
            self.assertEqual((answer[0], error_code(answer)), (504, "deadline_exceeded"))
            stream = Raw(server, TEXT, {**slow, "timeout_ms": 100, "stream": True})
            end = stream.until(b"\r\n0\r\n\r\n")
            stream.hang_up()
            self.assertIn(b'"code":"deadline_exceeded"', end)
            self.assertNotIn(b"[DONE]", end)
            wait_for(lambda: server.metric("requests_running") == 0, "the cancelling")
            self.assertEqual(call(server, TEXT, {"prompt": "x", "max_tokens": 1})[0], 200)
        with Running("-c", "2048", "--request-deadline", "0.1") as server:
            self.assertEqual(call(server, TEXT, slow)[0], 504)

    def test_progress_of_a_prompt_is_told(self):
        body = {"messages": [{"role": "user", "content": prompt(150, "progress")}], "stream": True,
                "max_tokens": 1, "return_progress": True}
        seen = []
        with Running("-c", "4096", "-b", "128") as server:
            for _ in range(2):
                raw = Raw(server, CHAT, body)
                lines = base.events(base.dechunk(raw.until(b"\r\n0\r\n\r\n")))[:-1]
                raw.hang_up()
                chunks = [json.loads(line[6:]) for line in lines]
                self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
                seen.append([c["prompt_progress"] for c in chunks if "prompt_progress" in c])
                wait_for(lambda: server.metric("store_queue_bytes") == 0, "storing")
        cold, warm = seen
        done = [p["processed"] for p in cold]
        self.assertGreater(len(done), 2)
        self.assertEqual(done, sorted(set(done)))
        self.assertEqual((cold[0]["cache"], done[-1]), (0, cold[0]["total"]))
        self.assertGreater(warm[0]["cache"], cold[0]["total"] // 2)

    # ---- signals

    def test_sigterm_lets_streams_end(self):
        with Running("-c", "2048") as server:
            running = Raw(server, TEXT, {**ENDLESS, "max_tokens": 100})
            running.until(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(b"[DONE]", running.until_closed())
            self.assertEqual(server.process.wait(PATIENCE_S), 0)
            running.hang_up()

    def test_the_grace_ends(self):
        with Running("-c", "2048", "--parallel", "1", "--stop-grace", "0.3") as server:
            running = Raw(server, TEXT, ENDLESS)
            running.until(b"data: ")
            waiting = Raw(server, TEXT, {"prompt": "x", "max_tokens": 1})
            wait_for(lambda: server.metric("requests_waiting") == 1, "the second to wait")
            server.process.send_signal(signal.SIGTERM)
            self.assertIn(b'"code":"stopping"', running.until_closed())
            self.assertTrue(waiting.until_closed().startswith(b"HTTP/1.1 503 "))
            self.assertEqual(server.process.wait(PATIENCE_S), 0)
            running.hang_up()
            waiting.hang_up()

    def test_a_second_signal_ends_at_once(self):
        with Running("-c", "2048", "--stop-grace", "3600") as server:
            running = Raw(server, TEXT, ENDLESS)
            running.until(b"data: ")
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            self.assertIsNone(server.process.poll())
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(10), 128 + signal.SIGTERM)
            running.hang_up()

    def test_sigterm_while_loading(self):
        process = subprocess.Popen([base.PROGRAM, "serve", "-m", base.MODEL, "--port", "0",
                                    "--cache-dir", self.folder.name],
                                   stderr=subprocess.PIPE, text=True)
        process.stderr.readline()  # it listens, and now loads
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(10), 0)
        process.stderr.close()

    # ---- TLS

    def certificate(self, name):
        cert, key = (os.path.join(self.folder.name, name + end) for end in (".crt", ".key"))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", cert,
                        "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
        return cert, key

    def test_tls(self):
        cert, key = self.certificate("a")
        _, other = self.certificate("b")
        self.assertIn("is not that of the certificate",
                      self.failing("--ssl-cert-file", cert, "--ssl-key-file", other))
        self.assertIn("cannot read", self.failing("--ssl-cert-file", key + "x", "--ssl-key-file", key))
        with Running("-c", "512", "--ssl-cert-file", cert, "--ssl-key-file", key,
                     tls=cert) as server:
            url = f"https://localhost:{server.port}{TEXT}"
            body = json.dumps({"prompt": "x", "max_tokens": 8, "stream": True, "logit_bias": NO_END})
            curl = ["curl", "-sS", "-m", str(PATIENCE_S)]
            done = subprocess.run([*curl, "--cacert", cert, "-d", body, url], capture_output=True,
                                  text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue(done.stdout.endswith("data: [DONE]\n\n"), done.stdout)
            self.assertEqual(subprocess.run([*curl, url], capture_output=True).returncode, 60)
            plain = f"http://localhost:{server.port}/health"
            self.assertNotEqual(subprocess.run([*curl, plain], capture_output=True).returncode, 0)
            old = [*curl, "--cacert", cert, "--tls-max", "1.1", url]
            self.assertNotEqual(subprocess.run(old, capture_output=True).returncode, 0)


if __name__ == "__main__":
    if not base.MODEL:
        print("HEADSTART_TEST_SMOLLM2 is not set")
        sys.exit(77)
    base.PROGRAM = sys.argv.pop(1)
    unittest.main(verbosity=2)
