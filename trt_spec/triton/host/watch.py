"""No server stays ready whose engine cannot answer.

Triton keeps calling a model ready after its process died, and knows nothing of an engine that failed. Whoever routes
requests by /v2/health/ready would send them there for ever. So the server is ended: by the streaming model when its
engine has failed or the process of another model is gone, and by the others when the streaming model's is.
Whoever runs the server (`trt-spec serve`, a container's restart policy) sees it end, with the reason in the log.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

PING = "ping"  # a request parameter: not a prompt, answered where the engine can take requests
END_S = 5.0  # for a server to end by itself; what runs in a dead model is never answered, and waiting for it hangs
_KILL = 'sleep "$1"; [ "$(cat /proc/$0/comm 2>/dev/null)" = tritonserver ] && kill -9 "$0"'


def end_server(pb_utils: Any, why: str) -> None:
    """Ends the tritonserver that this process is a stub of; where it is none, only says in the log why it would."""
    parent = os.getppid()
    pb_utils.Logger.log_error(f"trt_spec: ending the server: {why}")
    try:
        name = Path(f"/proc/{parent}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return
    if name != "tritonserver":
        return
    os.kill(parent, signal.SIGTERM)
    # Server 2.51 waits half a minute for a model whose process is dead, and its clients as long. This process ends
    # before that, so another one has to see to it.
    command = ["/bin/sh", "-c", _KILL, str(parent), str(END_S)]
    nowhere = subprocess.DEVNULL
    subprocess.Popen(command, start_new_session=True, stdin=nowhere, stdout=nowhere, stderr=nowhere)
