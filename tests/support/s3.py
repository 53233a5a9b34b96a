"""An object store of tests: moto's server, which speaks S3 and checks each request's signature and rights."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers import Server

WRITER = ("s3:PutObject", "s3:AbortMultipartUpload")
READER = ("s3:GetObject",)
CLEANER = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket")
"""The rights that ``docs/segments.md`` names."""
REGION = "eu-west-1"
_COLOUR = re.compile(r"\x1b\[\d+m")
_SERVE = "from moto.server import main; main()"


@dataclass(frozen=True, slots=True)
class Keys:
    """The access keys of one user."""

    id: str
    secret: str = field(repr=False)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that every S3 client reads."""
        return {"AWS_ACCESS_KEY_ID": self.id, "AWS_SECRET_ACCESS_KEY": self.secret}


class S3Server(Server):
    """An object store in memory; what it holds ends with its process.

    :raises FileNotFoundError: moto is not installed.
    """

    product = "moto"
    stop_signals = (signal.SIGTERM,)

    def __init__(self) -> None:
        if any(importlib.util.find_spec(name) is None for name in ("moto", "flask", "flask_cors")):
            raise FileNotFoundError("moto, an object store for tests, is not installed: ./run setup installs it")
        super().__init__()
        self.owner = Keys("", "")
        """A user who may do everything."""
        self._users = 0

    def start(self) -> None:
        """Start the server; from then on it knows who may do what."""
        super().start()
        self.owner = self.user("s3:*", "iam:*")
        # Until now anybody could do anything.
        request = urllib.request.Request(f"{self.endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        urllib.request.urlopen(request, timeout=10).close()

    @property
    def endpoint(self) -> str:
        """URL of the server, as ``AWS_ENDPOINT_URL`` takes it."""
        return f"http://{self.host}:{self.port}"

    def place(self, bucket: str, *, port: int | None = None) -> str:
        """Name a folder of a bucket, as a store takes it.

        :param port: another one than the server's own, where something stands between.
        """
        return f"s3://{bucket}/queue?region={REGION}&scheme=http&endpoint_override={self.host}:{port or self.port}"

    def user(self, *actions: str, resource: str = "*") -> Keys:
        """Make a user who may do some things; returns its keys."""
        self._users += 1
        name = f"user-{self._users}"
        client = self._client("iam")
        client.create_user(UserName=name)
        rights = {"Effect": "Allow", "Action": list(actions), "Resource": resource}
        document = json.dumps({"Version": "2012-10-17", "Statement": [rights]})
        client.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=document)
        made = client.create_access_key(UserName=name)["AccessKey"]
        return Keys(made["AccessKeyId"], made["SecretAccessKey"])

    def create_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        self._client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})

    def objects(self, bucket: str) -> dict[str, int]:
        """List what a bucket holds: sizes by key."""
        return {
            one["Key"]: one["Size"] for one in self._client("s3").list_objects_v2(Bucket=bucket).get("Contents", ())
        }

    def read(self, bucket: str, key: str) -> bytes:
        """Read an object."""
        content: bytes = self._client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    def write(self, bucket: str, key: str, content: bytes) -> None:
        """Put an object where its owner does not expect it."""
        self._client("s3").put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, key: str) -> None:
        """Delete an object behind its owner's back."""
        self._client("s3").delete_object(Bucket=bucket, Key=key)

    def requests(self) -> list[str]:
        """Return the lines of the log that tell requests: method, path, and status at the end."""
        lines = _COLOUR.sub("", (self.folder / "server.log").read_text(errors="replace")).splitlines()
        return [line.partition("] ")[2] for line in lines if " HTTP/1." in line]

    def _client(self, service: str) -> Any:
        import boto3

        keys = {"aws_access_key_id": self.owner.id or "any", "aws_secret_access_key": self.owner.secret or "any"}
        return boto3.client(service, endpoint_url=self.endpoint, region_name=REGION, **keys)

    def _prepare(self) -> None:
        pass

    def _command(self) -> list[str]:
        return [sys.executable, "-P", "-c", _SERVE, "-H", self.host, "-p", str(self.port)]

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.endpoint}/moto-api/", timeout=5).close()
        except (OSError, urllib.error.URLError):
            return False
        return True
