"""Print pip's settings, of files and PIP_* variables, as shell code for `uv pip install`.

uv reads none of them, and would install other packages: a build of torch for CUDA from PyPI, say,
where pip finds one for CPUs in a folder. Runs with the Python of the environment to install into.
"""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
import sys

#: pip's options to uv's; of several values pip reads them apart at blanks.
SEVERAL = {
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
}
ONE = {"index-url": "--index-url", "pypi-url": "--index-url"}
FLAGS = {"no-index": "--no-index", "pre": "--prerelease=allow", "no-cache-dir": "--no-cache"}
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTP_PROXY", "HTTPS_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "retries": ("UV_HTTP_RETRIES",),
}


def settings() -> dict[str, str]:
    """Return pip's settings by the long name of the option; variables come before files."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in found and value:
            found[section][option.replace("_", "-")] = str(ast.literal_eval(value))
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    given = {"cert": bundle} if bundle else {}
    return {**given, **found["global"], **found["install"], **found[":env:"]}


def main() -> None:
    """Print an array of arguments, and variables."""
    arguments: list[str] = []
    variables: list[str] = []
    for option, value in settings().items():
        if option in SEVERAL:
            for each in value.replace(",", " ").split() if "binary" in option else value.split():
                arguments += [SEVERAL[option], each]
        elif option in ONE and value:
            arguments += [ONE[option], value]
        elif option in FLAGS and value.lower() in ("1", "true", "yes", "on", "y", "t"):
            arguments.append(FLAGS[option])
        elif option in VARIABLES and value:
            variables += [f"export {name}={shlex.quote(value)}" for name in VARIABLES[option]]
    print("uv_settings=(" + " ".join(map(shlex.quote, arguments)) + ")")
    print("\n".join(variables))


if __name__ == "__main__":
    main()
