"""The convolution as a value, and what follows from it: factors, offset tables, the matrix product."""

from jaxconv.problem.conv_problem import ROLES, SPATIAL, ConvProblem, Dim, Member, Shape, Spec, row_major_strides
