"""The official JavaScript client, where there is one.

npm install --prefix DIRECTORY openai
SAMOVAR_NODE_MODULES=DIRECTORY/node_modules pytest tests/server/test_node_client.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, Running

NODE = shutil.which("node")
MODULES = Path(os.environ.get("SAMOVAR_NODE_MODULES", "/nowhere"))

pytestmark = pytest.mark.skipif(
    NODE is None or not (MODULES / "openai").is_dir(),
    reason="needs node, and SAMOVAR_NODE_MODULES with the package openai",
)

SCRIPT = """
import { createRequire } from "node:module";
const require = createRequire(process.argv[1] + "/");
const { default: OpenAI } = require("openai");

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "any", maxRetries: 0 });
const options = {
  model: "x", messages: [{ role: "user", content: "Hello" }],
  max_tokens: 16, temperature: 1.5, seed: 11,
};

const whole = await client.chat.completions.create(options);
const chunks = [];
const stream = await client.chat.completions.create({
  ...options, stream: true, stream_options: { include_usage: true },
});
for await (const chunk of stream) chunks.push(chunk);
const runner = client.chat.completions.stream(options);
const accumulated = await runner.finalChatCompletion();
const text = await client.completions.create({ model: "x", prompt: ["a", "b"], max_tokens: 4 });
const models = [];
for await (const model of client.models.list()) models.push(model.id);

let error;
try {
  await client.chat.completions.create({ ...options, n: 2, stream: true });
} catch (caught) {
  error = { name: caught.constructor.name, status: caught.status, code: caught.code,
            param: caught.param, requestID: caught.requestID };
}

const endless = { ...options, max_tokens: 1000, stream: true };
const leaving = await client.chat.completions.create(endless);
for await (const chunk of leaving) break; // the client aborts the request

console.log(JSON.stringify({ whole, chunks, accumulated, text, models, error }));
"""


def test_the_javascript_client(server: Running, tmp_path: Path) -> None:
    script = tmp_path / "client.mjs"
    script.write_text(SCRIPT.replace("process.argv[1]", json.dumps(str(MODULES.resolve()))))
    result = subprocess.run(
        [str(NODE), str(script), f"{server.url}/v1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    whole = found["whole"]["choices"][0]
    assert whole["message"]["role"] == "assistant"
    assert whole["finish_reason"] in ("stop", "length")
    *chunks, last = found["chunks"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(d.get("content", "") for d in deltas) == whole["message"]["content"]
    assert last["usage"] == found["whole"]["usage"]
    accumulated = found["accumulated"]["choices"][0]
    assert accumulated["message"]["content"] == whole["message"]["content"]
    assert [choice["index"] for choice in found["text"]["choices"]] == [0, 1]
    assert found["models"] == ["llama"]
    assert found["error"].pop("requestID").startswith("req_")
    assert found["error"] == {
        "name": "BadRequestError",
        "status": 400,
        "code": "unsupported_value",
        "param": "n",
    }
