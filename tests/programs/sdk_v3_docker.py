"""The `docker` of sdk_v3_sends.py: of `docker compose ... -f FILE up` it keeps in HOST/ what each container would get:
HOST/opt/ml, and HOST/container.json with entrypoint and variables. Run by the SDK's interpreter, which has yaml."""

import json
import os
import shutil
import sys

import yaml

if "version" in sys.argv:
    print("Docker Compose version v2.26.1")
    sys.exit(0)
with open(sys.argv[sys.argv.index("-f") + 1]) as file:
    services = yaml.safe_load(file)["services"]
for host, service in services.items():
    for volume in sorted(service["volumes"], key=lambda volume: volume.split(":")[1]):
        outside, inside = volume.split(":")[:2]
        os.makedirs(outside, exist_ok=True)  # As docker does.
        shutil.copytree(outside, host + inside, dirs_exist_ok=True)
    environ = dict(entry.split("=", 1) for entry in service["environment"])
    with open(os.path.join(host, "container.json"), "w") as file:
        json.dump({"entrypoint": service["entrypoint"], "environ": environ}, file)
