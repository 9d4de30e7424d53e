"""The sidecar on each Kafka broker: takes finalized log segments from the broker's disks to object storage.

It reads the broker's log directories and never writes in them, asks the broker only for offsets and leadership, and
never deletes an object. The contract in ``tidemark`` defines its objects and their order.
"""

from tidemark.installation import VERSION

__version__ = VERSION
