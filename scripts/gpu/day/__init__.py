"""The runner of gpu-day: plan, folders, processes, report and figures."""
