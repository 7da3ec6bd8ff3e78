"""Decodes OTLP metric requests with the definitions their owners publish, and prints what it understood as JSON.

Input: one uncompressed request per line, in hex. Output: one JSON object per line, in protobuf's JSON form, with
numbers for enums. A request that cannot be decoded, or has a field its definition does not know, ends the program with a message
and status 1.
"""

import sys

from google.protobuf import json_format, unknown_fields
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2


def check_known(message):
    """Fails on a field without a definition, at any depth."""
    if len(unknown_fields.UnknownFieldSet(message)) > 0:
        sys.exit(f"unknown fields in {message.DESCRIPTOR.full_name}: {message}")
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                check_known(inner)


for line in sys.stdin:
    request = metrics_service_pb2.ExportMetricsServiceRequest()
    request.ParseFromString(bytes.fromhex(line.strip()))
    check_known(request)
    print(
        json_format.MessageToJson(
            request,
            indent=None,
            preserving_proto_field_name=True,
            use_integers_for_enums=True,
        )
    )
