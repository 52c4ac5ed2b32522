"""A small OpenAI-compatible server on a thread: streams made-up tokens, and is as forthcoming as a test wants it."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeOpenAI:
    """Speculates unless told otherwise; each step takes `step_s`.

    Args:
        has_running_usage: tells usage in every event; else only at the end.
        has_usage: tells it at all.
        refuses: fields that it answers with 400.
        switches: honours `speculation` and tells what was drafted.
        always_drafts: drafts whatever the request says.
        models: names of the models that it lists.
        names_param: names the field that it refuses, one at a time, in `error.param`.
        breaks_off: ends the stream before its last event.
    """

    def __init__(
        self,
        *,
        has_running_usage=True,
        has_usage=True,
        refuses=(),
        switches=True,
        always_drafts=False,
        models=("m",),
        step_s=0.0,
        status=200,
        keep_alive=True,
        names_param=False,
        breaks_off=False,
    ):
        self.bodies: list[dict] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.num_connections = 0
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # as real servers do; else small events wait for each other's receipt

            def setup(self):
                super().setup()
                owner.num_connections += 1

            def log_message(self, *arguments):
                pass

            def do_GET(self):
                self._json(200, {"data": [{"id": name} for name in models]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.bodies.append(body)
                owner.paths.append(self.path)
                owner.keys.append(self.headers.get("Authorization"))
                fields = {**body, **body["stream_options"]}
                wrong = [name for name in refuses if name in fields]
                if status != 200 or wrong:
                    param = {"param": wrong[0]} if names_param else {}
                    self._json(status if status != 200 else 400, {"error": {"message": "no", **param}})
                    return
                self._stream(body)

            def _stream(self, body):
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                if keep_alive:
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Connection", "close")
                self.end_headers()
                drafts = always_drafts or (switches and body.get("speculation", True))
                size, done, steps = (3 if drafts else 1), 0, 0
                if "messages" in body:
                    self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}], **self._usage(body, 0)})
                while done < body["max_tokens"]:
                    time.sleep(step_s)
                    done, steps = min(done + size, body["max_tokens"]), steps + 1
                    choice = {"delta": {"content": "x"}} if "messages" in body else {"text": "x"}
                    self._event({"choices": [choice], **self._usage(body, done)})
                if breaks_off:
                    self._write(b"")
                    self.close_connection = True
                    return
                last = {"delta": {}, "finish_reason": "length"}
                if switches and body.get("return_perf_metrics"):
                    drafted = 2 * steps if drafts else 0
                    last["speculation"] = {
                        "num_drafts": steps if drafts else 0,
                        "total_draft_tokens": drafted,
                        "total_accepted_draft_tokens": drafted,
                        "accepted_per_position": [steps, steps] if drafts else [],
                    }
                self._event({"choices": [last], **self._usage(body, done)})
                if has_usage:
                    self._event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": done}})
                self._write(b"data: [DONE]\n\n")
                if keep_alive:
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    self.close_connection = True

            def _usage(self, body, done):
                asked = body["stream_options"].get("continuous_usage_stats")
                if not (has_usage and has_running_usage and asked):
                    return {}
                return {"usage": {"prompt_tokens": 7, "completion_tokens": done}}

            def _event(self, event):
                self._write(f"data: {json.dumps(event)}\n\n".encode())

            def _write(self, data):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if keep_alive else data)
                self.wfile.flush()

            def _json(self, code, value):
                data = json.dumps(value).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._server.shutdown()
        self._server.server_close()
