"""Prints what a project of Trackio holds, as JSON: a program for the bed's interpreter; TRACKIO_DIR says where."""

import json
import sys

from trackio.sqlite_storage import SQLiteStorage as Storage

project = sys.argv[1]
runs = [record["name"] for record in Storage.get_run_records(project)]
found = {
    "runs": runs,
    "logs": [log for run in runs for log in Storage.get_logs(project, run)],
    "system": [log for run in runs for log in Storage.get_system_logs(project, run)],
    "alerts": Storage.get_alerts(project),
}
print(json.dumps(found))
