{"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","pid":0,"name":"process_name","args":{"name":"rank 0"}},
{"ph":"M","pid":0,"tid":0,"name":"thread_name","args":{"name":"worker 0"}},
{"ph":"M","pid":0,"tid":0,"name":"thread_sort_index","args":{"sort_index":0}},
{"ph":"X","pid":0,"tid":0,"ts":41376423349.498,"dur":7.435,"cat":"compute","name":"MATMUL 0","args":{"task":0,"type":"MATMUL"}}
]}
