# SPDX-License-Identifier: Apache-2.0
"""A demonstration with real processes: ``distperiodic demo``.

Real processes share the objects of one periodic job. One process joins, one is
killed, and one is frozen and resumes later. The objects are the hosts of a
network, and the job pings each host every two seconds. The ping only sleeps,
so no network is needed.

    scene    the plan: the processes, and each change of the group
    member   the job, and the program of one process
    servers  the services that the processes share: files, or ZooKeeper,
             RabbitMQ and a database
    account  the figures, computed from the records of the job
    picture  events and figures, as lines of text or as a picture
"""
