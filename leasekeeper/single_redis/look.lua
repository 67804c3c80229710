-- Changes nothing.
return look('0')
