"""The store's portable statements, one module per subject. The functions run in an open SQL transaction."""

from export_queue.core.store.queries import acts as acts
from export_queue.core.store.queries import cleanup as cleanup
from export_queue.core.store.queries import compactions as compactions
from export_queue.core.store.queries import dead_letters as dead_letters
from export_queue.core.store.queries import entries as entries
from export_queue.core.store.queries import exports as exports
from export_queue.core.store.queries import layouts as layouts
from export_queue.core.store.queries import locks as locks
from export_queue.core.store.queries import monitoring as monitoring
from export_queue.core.store.queries import notifications as notifications
from export_queue.core.store.queries import outcomes as outcomes
from export_queue.core.store.queries import queues as queues
from export_queue.core.store.queries import readers as readers
from export_queue.core.store.queries import rebuilds as rebuilds
from export_queue.core.store.queries import registrations as registrations
from export_queue.core.store.queries import reports as reports
from export_queue.core.store.queries import segments as segments
from export_queue.core.store.queries import staged_twice as staged_twice
from export_queue.core.store.queries import states as states
from export_queue.core.store.queries import vacuum as vacuum
from export_queue.core.store.queries import versions as versions
