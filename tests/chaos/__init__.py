# SPDX-License-Identifier: Apache-2.0
"""Faults in a cluster of real processes on real servers.

    plan ── faults ──► cluster: 3 schedulers, 6 workers, each with a proxy
                          │      to ZooKeeper, a broker and PostgreSQL
                          ├─► bus: RabbitMQ or Redis, and its faults
                          ├─► ledger: records of the handlers, with fences
                          ├─► journal: each committed transition of a claim
                          └─► gauges: requests, messages, threads, sockets
                                     │
                              checker, then the report
"""
