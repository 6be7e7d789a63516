# SPDX-License-Identifier: Apache-2.0
"""Real processes on real servers, and everything that befalls them.

    plan ── faults ──► cluster: 3 schedulers, 3 workers, each with a proxy
                          │      to ZooKeeper, RabbitMQ and PostgreSQL
                          ├─► ledger: what the handlers did, under what fence
                          ├─► journal: each move of each claim, as committed
                          └─► gauges: requests, messages, threads, sockets
                                     │
                              checker, then the report
"""
