# SPDX-License-Identifier: Apache-2.0
"""One process of the demo.

    python -m distperiodic.demo.member scheduler|worker NAME CONFIG RECORD \
        HOSTS PARENT

The process runs the same service as ``distperiodic scheduler`` or ``worker``,
but without a launcher, so that the demo kills or freezes the member itself.
On Linux, the process ends when its parent ends, even if the parent is killed.
"""

import contextlib
import ctypes
import logging
import os
import pathlib
import signal
import sys
import threading
import warnings

from oslo_service import backend

backend.register_backend_default_hook(lambda: backend.BackendType.THREADING)
warnings.filterwarnings('ignore', r'\s*Eventlet is deprecated')

from oslo_config import cfg  # noqa: E402

from distperiodic import exceptions  # noqa: E402
from distperiodic import opts  # noqa: E402
from distperiodic import service  # noqa: E402
from distperiodic.adapters.local.clock import SystemClock  # noqa: E402
from distperiodic.demo import pings  # noqa: E402
from distperiodic.demo import record  # noqa: E402

LOG = logging.getLogger('distperiodic.demo')

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def die_with(parent: int) -> None:
    """Make the kernel kill this process when *parent* ends.

    This works only on Linux. Elsewhere the parent must end this process.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The parent ended before the call above.
        sys.exit(1)


def main(kind: str, name: str, config: str, written: str, hosts: int,
         parent: int) -> int:
    signals = {signal.SIGTERM, signal.SIGINT}
    # Block signals before any thread starts, so that no thread is interrupted.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    die_with(parent)
    logging.basicConfig(
        level=logging.INFO,
        format='%(asctime)s %(levelname)s %(name)s %(message)s')
    for noisy in ('kazoo', 'amqp', 'kombu', 'oslo.messaging',
                  'oslo_service', 'stevedore'):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    conf = cfg.ConfigOpts()
    conf(['--config-file', config], use_env=False)
    opts.register_opts(conf)
    conf.set_override('member_id', name, group=opts.GROUP)
    tasks = pings.Pings(conf, hosts, record.Writer(pathlib.Path(written)),
                        SystemClock())
    served = (service.SchedulerService if kind == 'scheduler'
              else service.WorkerService)(conf, tasks)
    failed = []

    def watch() -> None:
        try:
            served.wait()
        except Exception as exc:
            failed.append(exc)
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        served.start()
    except exceptions.DistperiodicError as exc:
        LOG.error('not started: reason=%s', exc)
        return 1
    threading.Thread(target=watch, daemon=True).start()
    signal.sigwait(signals)
    served.stop()
    return 1 if failed else 0


if __name__ == '__main__':
    kind_, name_, config_, written_, hosts_, parent_ = sys.argv[1:]
    sys.exit(main(kind_, name_, config_, written_, int(hosts_),
                  int(parent_)))
