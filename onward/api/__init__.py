"""What users write, and what it means: AscendJob, translated to one `Job`.

Everything here is pure: plain objects in, plain objects out. The operator asks what pods, services and conditions a job
should have; `onward validate` asks what is wrong with a file. Nothing here talks to a cluster or reads a clock.
"""
