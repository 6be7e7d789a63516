# SPDX-License-Identifier: Apache-2.0
"""The program of the tutorial that runs tasks, one of which is rolled back."""

from typing import Any

from oslo_config import cfg

from distperiodic import Context
from distperiodic import PeriodicTasks
from distperiodic import SchedulerService
from distperiodic import tasks

Parameters = dict[str, Any]


class Modules(PeriodicTasks):

    @tasks.command('resource', 'check_resource')
    def check(self, context: Context, parameters: Parameters) -> Parameters:
        print(f'  a host with {parameters["Cpu"]} CPUs: h7')
        return {'Host': 'h7'}

    @tasks.command('mysql', 'init_instance')
    def init(self, context: Context, parameters: Parameters) -> Parameters:
        print(f'  start an instance on {parameters["Host"]}')
        return {'Port': 3306}

    @tasks.command('mysql', 'clean_instance')
    def clean(self, context: Context, parameters: Parameters) -> None:
        print(f'  remove the instance from {parameters["Host"]}')

    @tasks.command('resource', 'deduct_resource')
    def deduct(self, context: Context, parameters: Parameters) -> None:
        if parameters['Cpu'] > 8:
            raise RuntimeError('the quota is 8 CPUs')
        print(f'  deduct {parameters["Cpu"]} CPUs from the quota')


def create_instance(client: tasks.Client, cpu: int) -> None:
    print(f'create an instance with {cpu} CPUs')
    task_id = client.submit('create_instance', {'Cpu': cpu})
    task = client.wait(task_id, timeout=60)
    print(f'  {task.status}: {task.message or dict(task.parameters)}')


if __name__ == '__main__':
    cfg.CONF(default_config_files=['first_workflow.conf'])
    service = SchedulerService(cfg.CONF, Modules(cfg.CONF))
    service.start()
    client = tasks.Client(cfg.CONF)
    create_instance(client, 4)
    create_instance(client, 16)
    client.close()
    service.stop()
    service.wait()
