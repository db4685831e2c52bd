// Torture.
package main

func main() {}
